"""What a tenant is billed by beside the price book: dated and appended, as prices are."""

import re
from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any, Final, Self

import msgspec
from msgspec import Meta

from billing.errors import TermsInvalid
from billing.invoicing.period import Period
from billing.invoicing.rounding import percent_of

PAYMENT_DAYS: Final = 14
CENTS_MAX: Final = 10**14  # sums of amounts in JSON stay below 2^53

Cents = Annotated[int, Meta(ge=0, le=CENTS_MAX)]
Words = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
_SERIES: Final = re.compile(r"[A-Z0-9]{2,16}", re.ASCII)


class Fee(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fee a month; ``tax_rate`` None: that of usage."""

    name: Words
    cents: Cents
    tax_rate: str | None = None


class Discount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A percentage off the part of a month's usage above an amount, up to where the next one begins."""

    above_cents: Cents
    percent: str


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Terms of one tenant. They are of its invoices: statements of prepaid tenants have tax and nothing due.

    ``tax_rate`` is a percentage, of usage and of top-ups; ``tax_note`` is printed where there is none
    ("reverse charge"). ``commitment_cents`` a month are due at least for usage, after discounts and before
    coupons; fees do not count. ``series`` begins the numbers of documents; None: digits of the tenant's id.
    """

    payment_days: Annotated[int, Meta(ge=0, le=365)] = PAYMENT_DAYS
    tax_rate: str = "0"
    tax_note: Words | None = None
    fees: tuple[Fee, ...] = ()
    commitment_cents: Cents = 0
    discounts: tuple[Discount, ...] = ()
    series: str | None = None

    def check(self) -> Self:
        """Itself, if it means something.

        Raises:
            TermsInvalid: a percentage that is none, discounts out of order, fees of one name, or a series
                that is not 2 to 16 capital letters and digits.
        """
        percent_of(self.tax_rate, "tax_rate")
        for fee in self.fees:
            if fee.tax_rate is not None:
                percent_of(fee.tax_rate, "fees")
        if len({fee.name for fee in self.fees}) < len(self.fees):
            raise TermsInvalid("fees", "two fees have one name")
        for discount in self.discounts:
            percent_of(discount.percent, "discounts")
        above = [discount.above_cents for discount in self.discounts]
        if above != sorted(set(above)):
            raise TermsInvalid("discounts", "they begin at rising amounts")
        if self.series is not None and _SERIES.fullmatch(self.series) is None:
            raise TermsInvalid("series", f"{self.series!r} is not 2 to 16 capital letters and digits")
        return self

    @classmethod
    def read(cls, written: Any) -> Self:
        """Read JSON values; raises TermsInvalid, likewise."""
        try:
            return msgspec.convert(written, cls).check()
        except msgspec.ValidationError as error:
            raise TermsInvalid("terms", str(error)) from error


class DatedTerms(msgspec.Struct, frozen=True):
    """Terms from a day of the tenant's zone on. Of one day's, the highest ``revision`` holds."""

    effective_from: date
    terms: Terms
    revision: int = 0


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Days of a period that have the same terms."""

    since: date
    days: Annotated[int, Meta(ge=1)]
    terms: Terms


class Coupon(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something off: ``percent`` or ``cents``, where fees and usage come to ``minimum_cents`` at least.

    It never takes off more than there is; what an amount cannot take off in a period lapses.
    """

    code: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]
    percent: str | None = None
    cents: Annotated[int, Meta(ge=1, le=CENTS_MAX)] | None = None
    minimum_cents: Cents = 0

    def check(self) -> Self:
        """Itself; raises TermsInvalid where it takes off both, neither or nothing."""
        if (self.percent is None) == (self.cents is None):
            raise TermsInvalid("coupon", "it takes off a percentage or an amount")
        if self.percent is not None and percent_of(self.percent, "coupon") == 0:
            raise TermsInvalid("coupon", "it takes off nothing")
        return self


DEFAULT: Final = Terms()


def segments(period: Period, dated: Sequence[DatedTerms]) -> tuple[Segment, ...]:
    """The terms of each day of a period, in order; days before the first terms have the default ones."""
    ordered = sorted(dated, key=lambda one: (one.effective_from, one.revision))
    starts = [period.first_day, *(one.effective_from for one in ordered)]
    days = sorted({day for day in starts if period.first_day <= day < period.end_day})
    found: list[Segment] = []
    for day, end in zip(days, [*days[1:], period.end_day], strict=True):
        in_force = [one.terms for one in ordered if one.effective_from <= day]
        terms = in_force[-1] if in_force else DEFAULT
        if found and found[-1].terms == terms:
            found[-1] = msgspec.structs.replace(found[-1], days=found[-1].days + (end - day).days)
        else:
            found.append(Segment(day, (end - day).days, terms))
    return tuple(found)
