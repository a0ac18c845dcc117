"""Periods of budgets: the stretch of time that a budget is spent in, at an instant."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from billing.tenancy.limits import Budget

# A lifetime in microseconds that doubles still tell apart.
BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
END: Final = datetime(2200, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Span:
    """An interval ``[start, until)`` of instants, in UTC."""

    start: datetime
    until: datetime


def period_at(budget: Budget, at: datetime) -> Span:
    """The period of a budget that contains an instant: it begins at midnight in the budget's zone."""
    if budget.period == "lifetime":
        return Span(BEGIN, END)
    zone = _zone(budget.tz)
    today = at.astimezone(zone).date()
    first, last = _days(budget, today)
    return Span(_midnight(first, zone), _midnight(last, zone))


def _days(budget: Budget, today: date) -> tuple[date, date]:
    if budget.period == "daily":
        return today, today + timedelta(days=1)
    if budget.period == "weekly":
        monday = today - timedelta(days=today.weekday())
        return monday, monday + timedelta(days=7)
    first = today.replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    """The first instant of a day; where clocks skip midnight, the instant at which they do."""
    return datetime.combine(day, time(), zone).astimezone(UTC)


_zone = lru_cache(maxsize=512)(ZoneInfo)
