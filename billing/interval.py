"""Stretches of time: half-open, in a named zone, and cut into the slots that usage is added up in.

A slot is a quarter of an hour. Since 1972 the offset of every zone is a whole number of them (+5:30 and +5:45
too), so that a day, a week or a month of any zone is made of whole slots.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from billing.errors import IntervalInvalid

SLOT: Final = timedelta(minutes=15)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def zone_of(name: str) -> ZoneInfo:
    """A time zone by its IANA name, such as ``Asia/Kathmandu``.

    Raises:
        IntervalInvalid: there is no such zone.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise IntervalInvalid(f"no time zone {name!r}") from error


@dataclass(frozen=True, slots=True)
class Interval:
    """``[since, until)``, aware instants.

    Raises:
        IntervalInvalid: an instant without its zone, or an end before the beginning.
    """

    since: datetime
    until: datetime

    def __post_init__(self) -> None:
        if self.since.tzinfo is None or self.until.tzinfo is None:
            raise IntervalInvalid("an instant without a time zone")
        if self.until < self.since:
            raise IntervalInvalid(f"{self.until.isoformat()} is before {self.since.isoformat()}")

    @classmethod
    def of_days(cls, first: date, last: date, zone: str) -> Self:
        """From the first to the last of these days, both whole, in a zone."""
        tz = zone_of(zone)
        return cls(
            datetime.combine(first, time.min, tz),
            datetime.combine(last + timedelta(days=1), time.min, tz),
        )

    @property
    def slots(self) -> "Interval":
        """The whole slots in it, as one interval; empty when there is none."""
        first, end = -(-(self.since - _EPOCH) // SLOT), (self.until - _EPOCH) // SLOT
        return Interval(_EPOCH + first * SLOT, _EPOCH + max(first, end) * SLOT)
