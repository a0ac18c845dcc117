import json
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import PriceMissing, UsageInvalid
from billing.money import decimal_of, rate_of
from billing.pricing.book import PriceBook, PriceRow
from billing.pricing.rates import Rates
from billing.pricing.rating import WorstCase, rate, rating_instant, worst_case
from billing.pricing.toml import shipped
from billing.pricing.window import Window
from billing.usage import TokenUsage

CASES = json.loads((Path(__file__).parents[1] / "fixtures" / "rating.json").read_text())["cases"]
AT = datetime(2026, 11, 2, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def book_of(rates: Rates, *windows: Window, instant: Any = "admitted") -> PriceBook:
    return PriceBook((PriceRow("m", "USD", datetime(2020, 1, 1, tzinfo=UTC), instant, rates, windows),))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_public_bug_reports_are_charged_right(case: dict[str, Any]):
    buckets, rates = case["buckets"], {name: rate_of(text) for name, text in case["rates_per_mtok"].items()}
    usage = TokenUsage(buckets["hit"], 0, buckets.get("write", 0), buckets["miss"], buckets["output"])
    charge = rate(book_of(Rates(**rates)), "m", "USD", usage, AT)
    assert Decimal(decimal_of(charge.amount)) == Decimal(case["charge"])


@pytest.mark.parametrize(
    ("model", "instant", "charge"),
    [
        ("deepseek-flash", "2026-09-21T00:30:00Z", "0.000209472"),
        ("deepseek-flash", "2026-09-21T01:00:00Z", "0.000418944"),
        ("deepseek-v4-pro", "2026-09-21T00:30:00Z", "0.000732688"),
        ("deepseek-v4-pro", "2026-09-21T01:00:00Z", "0.001465376"),
        ("deepseek-v4-flash", "2026-08-16T15:59:59Z", "0.0001115072"),
        ("deepseek-chat", "2025-03-03T12:00:00Z", "0.0004492"),
        ("deepseek-chat", "2025-03-03T20:00:00Z", "0.00022460"),
        ("deepseek-chat", "2025-09-06T12:00:00Z", "0.00067424"),
    ],
)
def test_published_deepseek_prices_give_the_known_charges(model: str, instant: str, charge: str):
    usage = TokenUsage(cache_hit=1024, cache_owed=0, cache_write=0, cache_miss=176, output=300)
    rated = rate(shipped("deepseek"), model, "USD", usage, datetime.fromisoformat(instant))
    assert Decimal(decimal_of(rated.amount)) == Decimal(charge)


@pytest.mark.parametrize(
    ("model", "instant", "buckets", "charge"),
    [
        ("deepseek-flash", "2026-09-22T08:00:00Z", (400_000, 600_000, 1_000_000), "1.3824"),
        ("deepseek-v4-pro", "2026-09-21T01:00:00Z", (400_000, 600_000, 1_000_000), "4.7696"),
        ("deepseek-flash", "2026-09-24T10:00:00Z", (400_000, 600_000, 1_000_000), "0.6912"),
        ("deepseek-flash", "2026-09-26T02:00:00Z", (100_000, 20_000, 4_000), "0.0057"),
        ("deepseek-flash", "2026-09-22T08:00:00Z", (100_000, 20_000, 4_000), "0.0114"),
        ("deepseek-v4-pro", "2026-09-26T02:00:00Z", (100_000, 20_000, 4_000), "0.02332"),
        ("deepseek-v4-pro", "2026-09-22T08:00:00Z", (100_000, 20_000, 4_000), "0.04664"),
    ],
)
def test_long_requests_at_published_deepseek_prices(
    model: str, instant: str, buckets: tuple[int, int, int], charge: str
):
    hit, miss, output = buckets
    usage = TokenUsage(cache_hit=hit, cache_owed=0, cache_write=0, cache_miss=miss, output=output)
    rated = rate(shipped("deepseek"), model, "USD", usage, datetime.fromisoformat(instant))
    assert decimal_of(rated.amount) == charge


def test_owed_tokens_cost_what_hits_cost():
    book = book_of(Rates(hit=3, miss=100, output=500))
    as_hit = rate(book, "m", "USD", TokenUsage(64, 0, 0, 1, 0), AT)
    as_owed = rate(book, "m", "USD", TokenUsage(0, 64, 0, 1, 0), AT)
    assert as_owed.amount == as_hit.amount == 64 * 3 + 100
    assert (as_owed.cache_owed, as_owed.cache_hit) == (192, 0)


def test_cache_writes_that_the_book_does_not_price_are_refused():
    with pytest.raises(UsageInvalid):
        rate(book_of(Rates(1, 2, 3)), "m", "USD", TokenUsage(0, 0, 5, 1, 0), AT)


def test_a_charge_names_the_row_window_and_instant_that_rated_it():
    book = shipped("demo")
    at = datetime(2026, 11, 2, 16, 30, tzinfo=UTC)
    charge = rate(book, "smollm2-135m-instruct", "USD", TokenUsage.none(), at)
    assert (charge.window, charge.rated_at, charge.amount) == ("offpeak", at, 0)
    assert charge.price_row_id == book.rows[0].id


def test_the_row_in_force_at_admission_says_which_instant_rates():
    later = AT + MINUTE
    flat = Rates(1, 1, 1)
    assert rating_instant(book_of(flat).rows[0], AT, later) == AT
    assert rating_instant(book_of(flat, instant="completed").rows[0], AT, later) == later


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


RATES = st.builds(Rates, *([st.integers(0, 10**12)] * 3), st.none() | st.integers(0, 10**12))
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


@given(
    st.builds(book_of, RATES, WINDOWS, WINDOWS, instant=st.sampled_from(["admitted", "completed"])),
    STARTS.map(datetime.fromisoformat),
    st.tuples(st.integers(0, 4 * 3600), st.integers(0, 30 * 3600), st.fractions(0, 1)),
    st.tuples(*([st.integers(0, 500)] * 4)),
)
def test_no_charge_is_above_its_hold(
    book: PriceBook, start: datetime, seconds: tuple[int, int, Any], tokens: tuple[int, int, int, int]
):
    offset, span, share = seconds
    hit, owed, miss, output = tokens
    admitted = start + timedelta(seconds=offset)
    case = WorstCase(hit + owed + miss + 1, output, admitted, admitted + timedelta(seconds=span))
    at = rating_instant(book.rows[0], admitted, admitted + timedelta(seconds=int(span * share)))
    charge = rate(book, "m", "USD", TokenUsage(hit, owed, 0, miss + 1, output), at)
    assert charge.amount <= worst_case(book, "m", "USD", case)
