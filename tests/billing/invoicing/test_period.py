from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import given
from hypothesis import strategies as st

from billing.interval import Interval
from billing.invoicing.period import Period

ZONES = st.sampled_from(sorted(available_timezones()))
INSTANTS = st.datetimes(datetime(1980, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  Hypothesis takes naive bounds


@given(INSTANTS, ZONES)
def test_each_instant_is_in_one_period_and_periods_meet(at: datetime, zone: str) -> None:
    period = Period.of(at, zone)
    assert period.since <= at < period.until, "half-open"
    following = period.following(zone)
    assert following.since == period.until
    assert Period.of(period.until, zone) == following
    assert Period.of(period.until - timedelta(microseconds=1), zone) == period


@given(INSTANTS, ZONES)
def test_a_period_is_a_month_of_whole_quarters_of_an_hour(at: datetime, zone: str) -> None:
    period = Period.of(at, zone)
    assert 28 <= period.days <= 31 or zone in {"Pacific/Apia", "Pacific/Fakaofo", "Pacific/Enderbury"}, (
        "a zone that crossed the date line has lost a day"
    )
    assert period.first_day.day == 1
    assert period.end_day.day == 1
    interval = Interval(period.since, period.until)
    assert interval.slots == interval, "rollups hold it whole"


def test_the_hours_of_a_month_follow_the_clocks_of_the_zone() -> None:
    spring = Period.of(datetime(2026, 3, 15, tzinfo=UTC), "Europe/Stockholm")
    autumn = Period.of(datetime(2026, 10, 15, tzinfo=UTC), "Europe/Stockholm")
    assert spring.until - spring.since == timedelta(days=31, hours=-1)
    assert autumn.until - autumn.since == timedelta(days=31, hours=1)
    assert spring.days == autumn.days == 31
    assert spring.since == datetime(2026, 2, 28, 23, tzinfo=UTC)


def test_february_and_leap_years_have_their_days() -> None:
    assert [
        Period.of(datetime(year, 2, 29 - (year % 4 > 0), tzinfo=UTC), "UTC").days for year in (2027, 2028)
    ] == [
        28,
        29,
    ]


@given(INSTANTS, ZONES, ZONES)
def test_who_moves_to_another_zone_has_no_gap_no_overlap_and_no_short_month(
    at: datetime, zone: str, other: str
) -> None:
    following = Period.of(at, zone).following(other)
    assert following.since == Period.of(at, zone).until
    assert timedelta(days=26) < following.until - following.since < timedelta(days=33)
    assert following.until == Period.of(following.until - timedelta(hours=1), other).until
    assert following.until.astimezone(ZoneInfo(other)).day == 1
