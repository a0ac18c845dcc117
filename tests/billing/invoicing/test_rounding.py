from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import TermsInvalid
from billing.invoicing.rounding import MILLION, allot, half_up, percent_of, proportional
from tests.billing.invoicing.examples import percent_text

AMOUNTS = st.lists(st.integers(0, 10**20), max_size=12)


@given(st.integers(-(10**20), 10**20), st.integers(1, 10**9))
def test_half_up_is_the_nearest_whole_and_a_half_goes_away_from_zero(
    numerator: int, denominator: int
) -> None:
    exact, rounded = Fraction(numerator, denominator), half_up(numerator, denominator)
    assert abs(rounded - exact) <= Fraction(1, 2)
    if abs(rounded - exact) == Fraction(1, 2):
        assert abs(rounded) > abs(exact)


@given(st.lists(st.integers(-(10**20), 10**20), max_size=12), st.integers(1, 10**14), st.integers(0, 10**14))
def test_lines_add_up_to_the_floor_of_the_sum_and_none_is_off_by_a_unit(
    amounts: list[int], unit: int, carried: int
) -> None:
    """doublewordai/control-layer#227: rounded once, on the invoice; the rest, below a unit, is carried."""
    total = (sum(amounts) + carried % unit) // unit
    allotted = allot(amounts, unit, total)
    assert sum(allotted) == total
    assert all(
        abs(Fraction(amount, unit) - whole) < 1 for amount, whole in zip(amounts, allotted, strict=True)
    )


def test_the_units_that_are_left_go_to_the_largest_remainders_and_the_first_of_equals() -> None:
    assert allot([15, 19, 15, 11], 10, 6) == [2, 2, 1, 1]


@given(AMOUNTS, st.integers(0, 100))
def test_a_part_is_divided_in_proportion_and_takes_from_none_more_than_it_has(
    amounts: list[int], percent: int
) -> None:
    part = sum(amounts) * percent // 100
    divided = proportional(amounts, part)
    assert sum(divided) == part
    assert all(0 <= taken <= amount for taken, amount in zip(divided, amounts, strict=True))


@given(st.integers(0, MILLION))
def test_a_percentage_is_read_back_as_it_was_written(parts: int) -> None:
    assert percent_of(percent_text(parts)) == parts


@pytest.mark.parametrize(
    "text", ["", "24 %", "-1", "100.0001", "101", "24.0", "24.00001", "024", ".5", "٣", "1e1"]
)
def test_what_is_no_percentage_is_refused(text: str) -> None:
    with pytest.raises(TermsInvalid):
        percent_of(text)
