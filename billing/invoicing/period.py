"""Months of a time zone: what one invoice is about. Half-open, whole days, however long a day of it is."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, Self

from billing.interval import zone_of

_HOURS_OF_ZONES: Final = timedelta(hours=48)  # more than any two zones are apart


@dataclass(frozen=True, slots=True)
class Period:
    """``[since, until)`` in UTC, and the days of the zone that it consists of.

    It ends where a month of the zone does. It begins where the one before has ended, which is the first of
    that month unless the tenant's zone has changed meanwhile.
    """

    zone: str
    since: datetime
    until: datetime

    @classmethod
    def of(cls, at: datetime, zone: str) -> Self:
        """The month that holds an instant.

        Raises:
            IntervalInvalid: there is no such zone.
        """
        first = at.astimezone(zone_of(zone)).date().replace(day=1)
        return cls(zone, _midnight(first, zone), _midnight(_next_month(first), zone))

    def following(self, zone: str) -> "Period":
        """The period that begins where this one ends, in the zone that the tenant has by then."""
        month = Period.of(self.until, zone)
        # In a zone further west this month has not ended: its last hours belong to the next one.
        if month.until - self.until < _HOURS_OF_ZONES:
            month = Period.of(month.until, zone)
        return Period(zone, self.until, month.until)

    @property
    def first_day(self) -> date:
        """The day of the zone on which it begins."""
        return self.since.astimezone(zone_of(self.zone)).date()

    @property
    def end_day(self) -> date:
        """The first day behind it."""
        return self.until.astimezone(zone_of(self.zone)).date()

    @property
    def days(self) -> int:
        """How many days it has; those of 23 and 25 hours count as one."""
        return (self.end_day - self.first_day).days


def _midnight(day: date, zone: str) -> datetime:
    return datetime.combine(day, time.min, zone_of(zone)).astimezone(UTC)


def _next_month(first: date) -> date:
    return (first + timedelta(days=31)).replace(day=1)
