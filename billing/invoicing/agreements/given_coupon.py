"""A coupon that a tenant was given."""

from dataclasses import dataclass
from datetime import date, datetime

from billing.invoicing.terms import Coupon


@dataclass(frozen=True, slots=True)
class GivenCoupon:
    """A coupon of a tenant: in how many periods it may be used (None: all), from which day on, until when."""

    coupon: Coupon
    periods: int | None
    effective_from: date
    given_at: datetime
    ended_at: datetime | None = None
    used: int = 0

    def offered(self, since: datetime, end_day: date) -> bool:
        """Whether a period that begins at this instant and ends before this day may use it."""
        left = self.periods is None or self.used < self.periods
        return left and self.effective_from < end_day and (self.ended_at is None or self.ended_at > since)
