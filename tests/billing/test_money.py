import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import AmountInvalid, PriceInvalid
from billing.money import FEMTO_PER_CENT, Femto, decimal_of, femto_of, rate_of, split_cents

AMOUNTS = st.integers(-(10**35) + 1, 10**35 - 1).map(Femto)


def test_a_rate_per_million_tokens_is_whole_femto_units_per_token():
    assert rate_of("0.003625") == 3_625_000
    assert rate_of("1.40") == 1_400_000_000
    assert rate_of("0.000000001") == 1


@pytest.mark.parametrize(
    "text", ["0.0000000001", "-1", "+1", "1e-3", "1,5", ".5", "1.", "", " 1", "٣", "NaN"]
)
def test_a_rate_that_is_no_plain_decimal_of_nine_decimals_is_refused(text: str):
    with pytest.raises(PriceInvalid):
        rate_of(text)


@pytest.mark.parametrize("text", ["0.0000000000000001", "-25", "25 USD", "1e3", "inf"])
def test_an_amount_finer_than_a_femto_unit_or_not_plain_is_refused(text: str):
    with pytest.raises(AmountInvalid):
        femto_of(text)


def test_a_charge_under_a_cent_is_written_without_exponent():
    assert decimal_of(Femto(6 * 10**6)) == "0.000000006"
    assert decimal_of(Femto(-5 * 10**14)) == "-0.5"
    assert decimal_of(Femto(0)) == "0"
    assert decimal_of(femto_of("25")) == "25"


@given(AMOUNTS)
def test_an_amount_written_is_exactly_that_amount(amount: Femto):
    text = decimal_of(amount)
    assert re.fullmatch(r"-?\d+(\.\d*[1-9])?", text)
    sign = -1 if text.startswith("-") else 1
    assert sign * femto_of(text.removeprefix("-")) == amount


@given(AMOUNTS)
def test_splitting_cents_conserves_and_invoices_no_unearned_cent(total: Femto):
    cents, remainder = split_cents(total)
    assert cents * FEMTO_PER_CENT + remainder == total
    assert 0 <= remainder < FEMTO_PER_CENT
