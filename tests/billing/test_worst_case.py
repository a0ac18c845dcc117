"""The hold: the most that a request can cost, whoever's price, at whatever tier, and whenever it is rated."""

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from billing.errors import PriceMissing, TierMissing, UsageInvalid
from billing.pricing.book import Placement, PriceBook, PriceRow
from billing.pricing.publication import REQUEST_MAX, placement_refusal, refusal
from billing.pricing.rates import Rates
from billing.pricing.rating import WorstCase, rate, rating_instant, worst_case
from billing.pricing.toml import shipped
from billing.pricing.window import Window
from billing.usage import TokenUsage

AT = datetime(2026, 11, 2, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def book_of(rates: Rates, *windows: Window, instant: Any = "admitted") -> PriceBook:
    return PriceBook((PriceRow("m", "USD", datetime(2020, 1, 1, tzinfo=UTC), instant, rates, windows),))


def test_a_model_without_a_price_can_not_be_held_for():
    with pytest.raises(PriceMissing):
        worst_case(shipped("demo"), "other", "USD", WorstCase(1, 1, AT, AT))


def test_the_hold_of_a_scheme_rated_at_admission_ignores_later_windows():
    dear = Window("peak", Rates(10, 100, 1000), time(12, 1), time(13), "UTC")
    case = WorstCase(10, 10, AT, AT + 5 * MINUTE)
    assert worst_case(book_of(Rates(1, 2, 3), dear), "m", "USD", case) == 10 * 2 + 10 * 3
    assert (
        worst_case(book_of(Rates(1, 2, 3), dear, instant="completed"), "m", "USD", case)
        == 10 * 100 + 10 * 1000
    )


def test_the_hold_of_a_scheme_rated_on_completion_sees_a_window_of_one_minute():
    dear = Window("peak", Rates(10, 100, 1000), time(12, 17), time(12, 18), "UTC")
    book = book_of(Rates(1, 2, 3), dear, instant="completed")
    assert worst_case(book, "m", "USD", WorstCase(1, 1, AT, AT + 30 * MINUTE)) == 1100
    assert worst_case(book, "m", "USD", WorstCase(1, 1, AT, AT + 17 * MINUTE)) == 1100
    assert worst_case(book, "m", "USD", WorstCase(1, 1, AT, AT + 16 * MINUTE)) == 5


def test_the_hold_of_a_scheme_rated_on_completion_sees_a_row_that_takes_effect_meanwhile():
    before = PriceRow("m", "USD", datetime(2020, 1, 1, tzinfo=UTC), "completed", Rates(1, 2, 3))
    after = PriceRow("m", "USD", AT + timedelta(seconds=61), "completed", Rates(1, 20, 30))
    book = PriceBook((after, before))
    assert worst_case(book, "m", "USD", WorstCase(1, 1, AT, AT + MINUTE)) == 5
    assert worst_case(book, "m", "USD", WorstCase(1, 1, AT, AT + timedelta(seconds=61))) == 50


def test_the_hold_of_a_tenant_whose_price_or_plan_ends_meanwhile_covers_the_public_price():
    public = PriceRow("m", "USD", datetime(2020, 1, 1, tzinfo=UTC), "completed", Rates(1, 100, 1))
    ends = AT + timedelta(seconds=61)
    own = replace(public, tenant_id="ten_a", standard=Rates(1, 2, 1), effective_until=ends)
    plan = replace(public, plan="gold", standard=Rates(1, 3, 1))
    placements = (
        Placement("ten_b", AT - MINUTE, "gold"),
        Placement("ten_b", ends, None),
    )
    book = PriceBook((public, own, plan), placements)
    for tenant_id, cheap in (("ten_a", 2), ("ten_b", 3)):
        assert worst_case(book.of(tenant_id), "m", "USD", WorstCase(1, 0, AT, AT + MINUTE)) == cheap
        for late in (ends, AT + timedelta(days=3)):
            assert worst_case(book.of(tenant_id), "m", "USD", WorstCase(1, 0, AT, late)) == 100


BASIC = st.builds(Rates, *([st.integers(0, 10**12)] * 3), st.none() | st.integers(0, 10**12))
RATES = st.builds(replace, BASIC, flex=st.none() | BASIC, batch=st.none() | BASIC)
TIMES = st.times().map(lambda t: t.replace(second=0, microsecond=0))
WINDOWS = st.builds(
    Window,
    st.just("w"),
    RATES,
    TIMES,
    TIMES,
    st.sampled_from(["UTC", "Asia/Shanghai", "Asia/Kathmandu", "America/New_York", "Australia/Lord_Howe"]),
    st.frozensets(st.integers(0, 6), min_size=1),
    st.none() | st.just("CN"),
)
# Around the ends of summer time in New York and on Lord Howe, and over a Chinese holiday.
STARTS = st.sampled_from(["2026-11-01T04:00Z", "2026-03-08T05:00Z", "2026-04-04T13:00Z", "2026-10-01T00:00Z"])
PLANS, TENANTS = ("gold", "iron"), ("ten_a", "ten_b")
MAYBE = st.booleans()
OWNERS = st.sampled_from(
    [{}, {"plan": "gold"}, {"plan": "iron"}, {"tenant_id": "ten_a"}, {"tenant_id": "ten_b"}]
)
TIERS = st.sampled_from(["standard", "standard", "flex", "batch"])
RULES = st.sampled_from(["completed", "completed", "admitted"])


@st.composite
def books(draw: st.DrawFn, start: datetime, seconds: st.SearchStrategy[int]) -> PriceBook:
    """A public price, rows of anybody's that begin and end, and a tenant that changes plans."""
    public = PriceRow("m", "USD", datetime(2020, 1, 1, tzinfo=UTC), "completed", draw(RATES))
    rows = {public.id: public}
    for owner in draw(st.lists(OWNERS, max_size=5)):
        begin = start + timedelta(seconds=draw(seconds))
        row = PriceRow(
            model="m",
            currency="USD",
            effective_from=begin,
            instant=draw(RULES),
            standard=draw(RATES),
            windows=tuple(draw(st.lists(WINDOWS, max_size=1))),
            effective_until=begin + timedelta(seconds=abs(draw(seconds))) if owner and draw(MAYBE) else None,
            **owner,
        )
        rows[row.id] = row
    plans = draw(st.dictionaries(seconds, st.sampled_from([*PLANS, None]), max_size=3))
    placements = [Placement("ten_a", start + timedelta(seconds=at), plan) for at, plan in plans.items()]
    return PriceBook(tuple(rows.values()), tuple(placements)).of("ten_a")


@st.composite
def requests(draw: st.DrawFn) -> tuple[PriceBook, datetime, datetime, datetime]:
    """A book, and when a request is admitted, completed and due: often at changes, of minutes or of days."""
    start = datetime.fromisoformat(draw(STARTS))
    seconds = st.integers(-30, draw(st.sampled_from([100, 30 * 3600])))
    book = draw(books(start, seconds))
    begin = [dated.effective_from for dated in (*book.rows[1:], *book.placements)]
    end = [row.effective_until for row in book.rows if row.effective_until]
    moments = seconds.map(lambda s: start + timedelta(seconds=s))
    changes = st.sampled_from([*begin, *end]) if begin or end else moments
    admitted, completed, latest = sorted((draw(moments), draw(moments | changes), draw(moments)))
    return book, admitted, completed, draw(st.sampled_from([completed, latest]))


@given(requests(), st.tuples(*([st.integers(0, 500)] * 5)), TIERS)
def test_no_charge_is_above_its_hold_whatever_tier_plan_or_own_price_rates_it(
    request_: tuple[PriceBook, datetime, datetime, datetime],
    tokens: tuple[int, int, int, int, int],
    tier: Any,
):
    book, admitted, completed, latest = request_
    hit, owed, write, miss, output = tokens
    case = WorstCase(hit + owed + write + miss + 1, output, admitted, latest, tier)
    try:
        hold = worst_case(book, "m", "USD", case)
    except TierMissing:
        return
    at = rating_instant(book.row("m", "USD", admitted), admitted, completed)
    try:
        charge = rate(book, "m", "USD", TokenUsage(hit, owed, write, miss + 1, output), at, tier)
    except UsageInvalid:
        charge = rate(book, "m", "USD", TokenUsage(hit, owed, 0, write + miss + 1, output), at, tier)
    assert charge.amount <= hold


@st.composite
def publications(draw: st.DrawFn) -> tuple[PriceBook, PriceBook, datetime]:
    """A book, the same with a row or a placement more, and when that is published."""
    at = datetime.fromisoformat(draw(STARTS))
    old = draw(books(at, st.integers(-1300, 700)))
    seconds = st.sampled_from([0, 9, 10, 11, 300, 609, 610, 611]) | st.integers(0, 1300)
    begin = at + timedelta(seconds=draw(seconds))
    if draw(MAYBE):
        placement = Placement("ten_a", begin, draw(st.sampled_from([*PLANS, None])))
        assume(begin not in {each.effective_from for each in old.placements})
        assume(placement_refusal(placement, old, at) is None)
        return old, PriceBook(old.rows, (*old.placements, placement)).of("ten_a"), at
    owner = draw(OWNERS)
    until = begin + timedelta(seconds=draw(seconds)) if owner and draw(MAYBE) else None
    row = PriceRow("m", "USD", begin, draw(RULES), draw(RATES), effective_until=until, **owner)
    assume(row.id not in {each.id for each in old.rows})
    assume(refusal(row, old, PriceBook((row,)), at) is None)
    return old, PriceBook((*old.rows, row), old.placements).of("ten_a"), at


@given(
    publications(), st.integers(-1_300_000, 9_999) | st.just(9_999), st.integers(0, 600) | st.just(600), TIERS
)
def test_no_charge_is_above_a_hold_that_did_not_know_a_price_which_was_published_meanwhile(
    publication: tuple[PriceBook, PriceBook, datetime], admitted_ms: int, lasts_s: int, tier: Any
):
    old, new, at = publication
    admitted = at + (
        timedelta(seconds=admitted_ms) if admitted_ms < 0 else timedelta(milliseconds=admitted_ms)
    )
    completed = admitted + timedelta(seconds=lasts_s)
    try:
        hold = worst_case(old, "m", "USD", WorstCase(3, 5, admitted, admitted + REQUEST_MAX, tier))
    except TierMissing:
        return
    rated_at = rating_instant(old.row("m", "USD", admitted), admitted, completed)
    assert rate(new, "m", "USD", TokenUsage(0, 0, 0, 3, 5), rated_at, tier).amount <= hold
