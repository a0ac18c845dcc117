"""A credit note gives back at most what was invoiced, and its tax with it, however it is cut."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import InvoiceConflict
from billing.invoicing.crediting import credited_lines
from billing.invoicing.document import InvoiceDocument
from billing.invoicing.lines import total_of
from billing.invoicing.terms import Coupon, Fee, Terms
from tests.billing.invoicing.examples import basis, document, row

TERMS = Terms(tax_rate="24", fees=(Fee("support", 700, "6"),))
WHOLE = document(
    basis(row(1429), row(33, bucket="cache_miss"), terms=TERMS, coupons=(Coupon("C", cents=50),))
)


def note(of: InvoiceDocument, notes: list[InvoiceDocument], asked: Any) -> InvoiceDocument:
    lines, tax = credited_lines(of, notes, asked)
    total = total_of(lines, tax)
    return msgspec.structs.replace(of, document="credit_note", lines=lines, tax=tax, total_cents=total)


def test_in_full_it_gives_back_every_cent() -> None:
    whole = note(WHOLE, [], None)
    assert whole.total_cents == WHOLE.total_cents
    assert {tax.rate: tax.tax_cents for tax in whole.tax} == {tax.rate: tax.tax_cents for tax in WHOLE.tax}
    with pytest.raises(InvoiceConflict, match="nothing to credit"):
        note(WHOLE, [whole], None)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 400)), max_size=8))
def test_in_parts_it_gives_back_just_the_tax_of_the_whole(parts: Any) -> None:
    notes: list[InvoiceDocument] = []
    for position, cents in parts:
        left = WHOLE.lines[position].cents - sum(
            line.cents for each in notes for line in each.lines if line.credits == position
        )
        if cents <= left:
            notes.append(note(WHOLE, notes, {position: cents}))
    notes.append(note(WHOLE, notes, None))
    assert sum(each.total_cents for each in notes) == WHOLE.total_cents


@pytest.mark.parametrize("asked", [{0: 1430}, {0: -1}, {9: 1}, {-1: 1}, {}, {0: 0}, {3: 10}])
def test_more_than_a_line_has_or_a_line_that_is_not_there_is_refused(asked: dict[int, int]) -> None:
    with pytest.raises(InvoiceConflict):
        note(WHOLE, [], asked)


def test_what_a_coupon_took_off_is_not_given_back() -> None:
    free = document(basis(row(100), terms=TERMS, coupons=(Coupon("C", percent="100"),)))
    with pytest.raises(InvoiceConflict, match="after deductions"):
        note(free, [], {0: 100})
