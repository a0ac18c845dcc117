"""What usage and terms come to: each rounding once, in one order, adding up."""

from datetime import date
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import InvoiceInvalid
from billing.invoicing.derive import correction_used, derive
from billing.invoicing.lines import Adjustment
from billing.invoicing.rounding import percent_of
from billing.invoicing.terms import Coupon, Discount, Fee, Segment, Terms
from billing.money import FEMTO_PER_CENT, Femto
from tests.billing.invoicing.examples import basis, percent_text, row

TOKENS, RATES = st.integers(1, 10**12), st.integers(0, 10**10)
ROWS = st.lists(st.builds(row, TOKENS, RATES, section=st.sampled_from(["period", "late"])), max_size=8)
PERCENTS = st.integers(0, 10**6).map(percent_text)
CENTS = st.integers(0, 10**9)
FEES = st.lists(
    st.tuples(st.sampled_from("abc"), CENTS, st.none() | PERCENTS), max_size=3, unique_by=lambda fee: fee[0]
)
DISCOUNTS = st.lists(st.tuples(CENTS, PERCENTS), max_size=3, unique_by=lambda discount: discount[0]).map(
    lambda drawn: tuple(Discount(*each) for each in sorted(drawn))
)
TERMS = st.builds(
    Terms,
    tax_rate=PERCENTS,
    fees=FEES.map(lambda fees: tuple(Fee(*fee) for fee in fees)),
    commitment_cents=CENTS,
    discounts=DISCOUNTS,
)
COUPONS = st.lists(
    st.builds(Coupon, st.just("A"), percent=st.integers(1, 10**6).map(percent_text), minimum_cents=CENTS)
    | st.builds(Coupon, st.just("B"), cents=st.integers(1, 10**9)),
    max_size=3,
)
MONTHS = st.lists(st.tuples(st.integers(1, 15), TERMS), min_size=1, max_size=3).map(
    lambda drawn: tuple(Segment(date(2026, 11, 1), days, terms) for days, terms in drawn)
)


def lines_of(derived: Any, kind: str) -> list[int]:
    return [line.cents for line in derived.lines if line.kind == kind]


@given(ROWS, st.integers(0, FEMTO_PER_CENT - 1), MONTHS, COUPONS.map(tuple), CENTS)
def test_every_document_adds_up_and_owes_nothing_below_zero(
    rows: Any, carried: int, segments: Any, coupons: Any, credit: int
) -> None:
    of = basis(*rows, carried_in=Femto(carried), segments=segments, coupons=coupons, credit_cents=credit)
    derived = derive(of)
    used = sum(line.cents for line in derived.lines[: len(rows)])
    exact = sum(row.amount for row in rows) + carried
    assert used * FEMTO_PER_CENT + derived.carried_out == exact, "no femto-unit is lost or invented"
    assert 0 <= derived.carried_out < FEMTO_PER_CENT
    for rate in {line.tax_rate for line in derived.lines}:
        cents = sum(line.cents for line in derived.lines if line.tax_rate == rate)
        taxed = sum(tax.tax_cents for tax in derived.tax if tax.rate == rate)
        assert abs(taxed - Fraction(cents * percent_of(rate), 10**6)) <= Fraction(1, 2), (
            "half up, once a rate"
        )
        assert cents >= 0
    net = sum(line.cents for line in derived.lines)
    assert derived.total_cents == net + sum(tax.tax_cents for tax in derived.tax)
    assert 0 <= derived.credits_applied_cents == min(credit, derived.total_cents)
    assert derived.due_cents >= 0


@given(st.lists(ROWS, min_size=1, max_size=6))
def test_cut_into_months_usage_is_never_floored_by_more_than_one_cent_in_all(months: Any) -> None:
    """doublewordai/control-layer#227: amounts under a cent are not truncated, they wait for their cent."""
    carried, cents = Femto(0), 0
    for rows in months:
        derived = derive(basis(*rows, carried_in=carried))
        carried, cents = derived.carried_out, cents + derived.total_cents
    exact = sum(row.amount for rows in months for row in rows)
    assert cents == exact // FEMTO_PER_CENT


def test_credit_is_applied_to_the_total_including_tax() -> None:
    """getlago/lago-api#4642: 14.29 plus 24 % tax, paid from credits: 17.72 taken, total 0.00."""
    derived = derive(basis(row(1429), terms=Terms(tax_rate="24"), credit_cents=5000))
    assert [(tax.basis_cents, tax.tax_cents) for tax in derived.tax] == [(1429, 343)]
    assert (derived.total_cents, derived.credits_applied_cents, derived.due_cents) == (1772, 1772, 0)


def test_tax_is_half_up_once_for_all_lines_of_a_rate() -> None:
    lines = [row(1, bucket="output"), row(1, bucket="cache_miss")]
    assert derive(basis(*lines, terms=Terms(tax_rate="25"))).total_cents == 2 + 1, "0.5 is 1, not 0.25 twice"


def test_a_fee_is_prorated_by_days_only_where_it_changed() -> None:
    old, new = (
        Terms(fees=(Fee("support", 1000), Fee("gone", 100))),
        Terms(tax_rate="24", fees=(Fee("support", 1000),)),
    )
    months = (Segment(date(2026, 11, 1), 10, old), Segment(date(2026, 11, 11), 20, new))
    derived = derive(basis(segments=months))
    assert [(line.text, line.cents) for line in derived.lines] == [
        ("support", 1000),
        ("gone (10 of 30 days)", 33),
    ]


def test_a_commitment_counts_usage_after_its_discount_and_neither_fees_nor_coupons() -> None:
    terms = Terms(commitment_cents=1000, discounts=(Discount(0, "10"),), fees=(Fee("support", 700),))
    derived = derive(basis(row(500), terms=terms, coupons=(Coupon("HALF", percent="50"),)))
    assert lines_of(derived, "discount") == [-50]
    assert lines_of(derived, "commitment") == [1000 - 450]
    assert lines_of(derived, "coupon") == [-(1000 + 700) // 2]


def test_each_discount_is_of_its_own_part_of_the_usage() -> None:
    terms = Terms(discounts=(Discount(1000, "10"), Discount(2000, "20")))
    assert lines_of(derive(basis(row(2500), terms=terms)), "discount") == [-(100 + 100)]
    assert lines_of(derive(basis(row(1000), terms=terms)), "discount") == []


def test_coupons_come_one_after_the_other_need_their_minimum_and_take_no_more_than_there_is() -> None:
    too_small = Coupon("MIN", cents=1, minimum_cents=1001)
    coupons = (too_small, Coupon("TEN", percent="10"), Coupon("BIG", cents=5000), Coupon("MORE", cents=1))
    derived = derive(basis(row(1000), coupons=coupons, terms=Terms(tax_rate="24")))
    assert [(line.coupon, line.cents) for line in derived.lines[1:]] == [("TEN", -100), ("BIG", -900)]
    assert derived.total_cents == 0


def test_a_coupon_is_divided_among_tax_rates() -> None:
    terms = Terms(tax_rate="24", fees=(Fee("books", 300, "6"),))
    derived = derive(basis(row(700), terms=terms, coupons=(Coupon("C", cents=100),)))
    assert [(line.cents, line.tax_rate) for line in derived.lines if line.kind == "coupon"] == [
        (-70, "24"),
        (-30, "6"),
    ]
    assert [(tax.rate, tax.basis_cents) for tax in derived.tax] == [("6", 270), ("24", 630)]


def test_a_statement_of_prepaid_usage_has_every_line_and_nothing_due() -> None:
    terms = Terms(tax_rate="24", fees=(Fee("support", 700),), commitment_cents=10**6)
    of = basis(
        row(3, 4 * 10**12),
        row(7, bucket="cache_miss"),
        kind="statement",
        terms=terms,
        coupons=(Coupon("C", cents=1),),
    )
    amount = sum(each.amount for each in of.usage)
    derived = derive(
        basis(
            *of.usage,
            kind="statement",
            segments=of.segments,
            adjustments=(Adjustment("prepaid", str(-amount)),),
        )
    )
    assert sum(lines_of(derived, "usage")) == -sum(lines_of(derived, "prepaid"))
    assert (derived.total_cents, derived.tax, derived.carried_out) == (0, (), 0)


@given(ROWS, st.integers(-(10**16), 10**16))
def test_a_correction_takes_off_what_there_is_and_the_rest_waits(rows: Any, correction: int) -> None:
    usage = Femto(sum(each.amount for each in rows))
    used = correction_used(Femto(correction), usage)
    derived = derive(basis(*rows, adjustments=(Adjustment("correction", str(-used)),)))
    assert derived.total_cents == (usage - used) // FEMTO_PER_CENT
    assert used == correction or used == usage < correction


def test_adjustments_beyond_the_usage_are_refused() -> None:
    with pytest.raises(InvoiceInvalid):
        derive(basis(row(1), adjustments=(Adjustment("prepaid", str(-2 * FEMTO_PER_CENT)),)))
