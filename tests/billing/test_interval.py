"""Stretches of time are half-open, in the zone asked for, and made of whole quarters of an hour."""

from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import IntervalInvalid
from billing.interval import SLOT, Interval

ZONES = sorted(available_timezones())
DAYS = st.dates(date(1973, 1, 1), date(2100, 1, 1))
INSTANTS = st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  Hypothesis takes naive bounds


def test_a_day_is_that_day_alone() -> None:
    """BerriAI/litellm#22176: "Feb 24" is the 24th alone, in the zone asked for."""
    day = Interval.of_days(date(2026, 2, 24), date(2026, 2, 24), "Asia/Kathmandu")
    assert day.since == datetime(2026, 2, 23, 18, 15, tzinfo=UTC)
    assert day.until == datetime(2026, 2, 24, 18, 15, tzinfo=UTC)


def test_an_instant_keeps_its_offset() -> None:
    """BerriAI/litellm#34896: +09:00 is converted, not dropped."""
    tokyo = datetime(2026, 2, 24, tzinfo=timezone(timedelta(hours=9)))
    assert Interval(tokyo, tokyo).since == datetime(2026, 2, 23, 15, tzinfo=UTC)
    with pytest.raises(IntervalInvalid):
        Interval(tokyo, datetime(2026, 2, 25))  # noqa: DTZ001  what is refused


def test_an_end_before_the_beginning_and_an_unknown_zone_are_refused() -> None:
    at = datetime(2026, 2, 24, tzinfo=UTC)
    with pytest.raises(IntervalInvalid):
        Interval(at, at - timedelta(seconds=1))
    for name in ("Mars/Olympus", "../etc", ""):
        with pytest.raises(IntervalInvalid):
            Interval.of_days(date(2026, 2, 24), date(2026, 2, 24), name)


@given(DAYS, st.sampled_from(ZONES))
def test_a_day_of_any_zone_is_made_of_whole_slots(day: date, zone: str) -> None:
    interval = Interval.of_days(day, day, zone)
    assert interval.slots == interval


@given(INSTANTS, st.timedeltas(timedelta(0), timedelta(hours=3)))
def test_whole_slots_lie_inside_and_less_than_a_slot_is_left_at_either_end(
    since: datetime, length: timedelta
) -> None:
    interval = Interval(since, since + length)
    slots = interval.slots
    assert (slots.until - slots.since) % SLOT == timedelta(0)
    assert timedelta(0) <= slots.since - since < SLOT
    if slots.since < slots.until:
        assert timedelta(0) <= interval.until - slots.until < SLOT
    else:
        assert length < 2 * SLOT
