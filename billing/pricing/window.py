"""Hours of the week at which other rates hold."""

from collections.abc import Container
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo

import holidays

from billing.pricing.rates import Rates

EVERY_DAY: Final = frozenset(range(7))

_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Window:
    """Full rates for ``[start, end)`` of wall-clock time in ``tz``, on some days, in whole minutes.

    ``end <= start`` wraps midnight (equal: a whole day); the hours after midnight belong to the day on which
    the window opened. ``days`` counts Monday as 0. It stays shut on public holidays of the
    country ``holidays``.
    """

    name: str
    rates: Rates
    start: time
    end: time
    tz: str
    days: frozenset[int] = EVERY_DAY
    holidays: str | None = None

    def contains(self, at: datetime) -> bool:
        """Whether the window is open at this instant."""
        local = at.astimezone(ZoneInfo(self.tz))
        now, today = local.time(), local.date()
        if self.start < self.end:
            return self.start <= now < self.end and self._opens_on(today)
        if now >= self.start:
            return self._opens_on(today)
        return now < self.end and self._opens_on(today - _DAY)

    def _opens_on(self, day: date) -> bool:
        if day.weekday() not in self.days:
            return False
        return self.holidays is None or day not in public_holidays(self.holidays)


@cache
def public_holidays(country: str) -> Container[date]:
    """Public holidays of a country (ISO 3166 code), computed year by year as they are asked for."""
    return holidays.country_holidays(country)


@cache
def is_calendar(country: str) -> bool:
    """Whether there is a holiday calendar of this country."""
    return country in holidays.list_supported_countries()
