"""From usage and terms to what is due. Pure, and the same for who bills and for who checks the bill.

The order is fixed:

 1. Usage of the period and late usage, each row tokens times rate, less what was drawn from credit as it was
    used and corrected since, plus the remainder carried in, is summed in femto-units and floored to cents
    **once**. The remainder is carried out. Rows become lines of whole cents by the largest remainder.
 2. The discount on these cents: each percentage on its part of them, rounded half up once.
 3. Fees of the month, prorated by days where the terms changed within it, half up each.
 4. What a commitment asks beyond usage after its discount; prorated likewise.
 5. Coupons, in the order they were given, each off what is left, divided among tax rates in proportion.
 6. Tax, half up once a rate, on all lines of the rate.
 7. Credit, at most the total including tax.

Terms of the last day hold for discount, tax and payment. No total is below zero: discount and coupons take at
most what is there, and a correction in the tenant's favour waits where it exceeds the usage. A statement has
no fees, commitment, discount or coupons: a prepaid tenant has paid for its usage when this is derived.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from billing.errors import InvoiceInvalid
from billing.invoicing.lines import Adjustment, Line, LineKind, Tax, UsageRow, taxes, total_of
from billing.invoicing.rounding import MILLION, allot, half_up, percent_of, proportional, share
from billing.invoicing.terms import Coupon, Discount, Segment
from billing.money import FEMTO_PER_CENT, ZERO, Femto, split_cents

PeriodKind = Literal["invoice", "statement"]


@dataclass(frozen=True, slots=True)
class Basis:
    """All that decides what a period comes to. ``credit_cents``: credit that there is, in whole cents."""

    kind: PeriodKind
    usage: tuple[UsageRow, ...]
    carried_in: Femto
    adjustments: tuple[Adjustment, ...]
    segments: tuple[Segment, ...]
    coupons: tuple[Coupon, ...] = ()
    credit_cents: int = 0

    @property
    def tax_rate(self) -> str:
        """Of usage: the last day's."""
        return self.segments[-1].terms.tax_rate


@dataclass(frozen=True, slots=True)
class Derived:
    """What is due. ``lines`` begin with one for each row of usage, in its order, and each adjustment."""

    lines: tuple[Line, ...]
    tax: tuple[Tax, ...]
    carried_out: Femto
    total_cents: int
    credits_applied_cents: int

    @property
    def due_cents(self) -> int:
        """To be paid."""
        return self.total_cents - self.credits_applied_cents


def derive(basis: Basis) -> Derived:
    """See above.

    Raises:
        InvoiceInvalid: adjustments that leave less than nothing.
    """
    lines, carried_out = _usage_lines(basis)
    if basis.kind == "invoice":
        used = sum(line.cents for line in lines)
        lines += _discount(used, basis.segments[-1].terms.discounts, basis.tax_rate)
        net = sum(line.cents for line in lines)
        lines += _fees(basis.segments, basis.tax_rate)
        lines += _commitment(net, basis.segments, basis.tax_rate)
        lines += _coupons(lines, basis.coupons)
    tax = taxes(lines)
    total = total_of(lines, tax)
    assert total >= 0, f"a total of {total}"
    return Derived(tuple(lines), tax, carried_out, total, min(total, basis.credit_cents))


def correction_used(corrections: Femto, usage: Femto) -> Femto:
    """How much of corrections in the tenant's favour a document takes off usage; below zero, it adds them."""
    return Femto(min(corrections, max(ZERO, usage)))


def _usage_lines(basis: Basis) -> tuple[list[Line], Femto]:
    kinds: list[LineKind] = ["usage" if row.section == "period" else "late" for row in basis.usage]
    texts = [row.text for row in basis.usage]
    amounts: list[int] = [row.amount for row in basis.usage]
    for adjustment in basis.adjustments:
        kinds.append(adjustment.kind)
        texts.append(_ADJUSTED[adjustment.kind])
        amounts.append(adjustment.amount)
    cents, carried_out = split_cents(Femto(sum(amounts) + basis.carried_in))
    if cents < 0:
        raise InvoiceInvalid("adjustments exceed the usage")
    allotted = allot(amounts, FEMTO_PER_CENT, cents)
    lines = [Line(*each, basis.tax_rate) for each in zip(kinds, texts, allotted, strict=True)]
    return lines, carried_out


_ADJUSTED = {"prepaid": "drawn from credit as it was used", "correction": "corrections"}


def _discount(used: int, discounts: Sequence[Discount], tax_rate: str) -> list[Line]:
    ends = [*(each.above_cents for each in discounts[1:]), None]
    off = 0
    for discount, end in zip(discounts, ends, strict=False):
        part = max(0, (used if end is None else min(used, end)) - discount.above_cents)
        off += part * percent_of(discount.percent)
    cents = half_up(off, MILLION)
    return [Line("discount", "discount on usage", -cents, tax_rate)] if cents else []


def _fees(segments: Sequence[Segment], tax_rate: str) -> list[Line]:
    """A fee that holds through changes of other terms is prorated, and rounded, once."""
    month = sum(segment.days for segment in segments)
    days: dict[tuple[str, int, str], int] = {}
    for segment in segments:
        for fee in segment.terms.fees:
            each = fee.name, fee.cents, fee.tax_rate or tax_rate
            days[each] = days.get(each, 0) + segment.days
    return [
        Line("fee", name if held == month else f"{name} ({held} of {month} days)", prorated, rate)
        for (name, cents, rate), held in days.items()
        if (prorated := half_up(cents * held, month))
    ]


def _commitment(net: int, segments: Sequence[Segment], tax_rate: str) -> list[Line]:
    month = sum(segment.days for segment in segments)
    committed = half_up(sum(each.terms.commitment_cents * each.days for each in segments), month)
    missing = committed - net
    return [Line("commitment", "minimum commitment", missing, tax_rate)] if missing > 0 else []


def _coupons(lines: Sequence[Line], coupons: Sequence[Coupon]) -> list[Line]:
    left: dict[str, int] = {}
    for line in lines:
        left[line.tax_rate] = left.get(line.tax_rate, 0) + line.cents
    whole, found = sum(left.values()), []
    for coupon in coupons:
        there = sum(left.values())
        if whole < coupon.minimum_cents or there <= 0:
            continue
        if coupon.percent is not None:
            off = share(there, percent_of(coupon.percent))
        else:
            off = min(there, coupon.cents or 0)
        for rate, cents in zip(left, proportional(list(left.values()), off), strict=True):
            if cents:
                left[rate] -= cents
                found.append(Line("coupon", f"coupon {coupon.code}", -cents, rate, coupon.code))
    return found
