import json
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from billing.errors import TierMissing, UsageInvalid
from billing.money import Femto, decimal_of, rate_of, split_cents
from billing.pricing.book import Placement, PriceBook, PriceRow
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


def test_a_price_of_ones_own_comes_before_the_plans_and_that_before_the_public_one():
    def row(miss: int, hours: int, until: int | None = None, **owner: Any) -> PriceRow:
        begins, ends = AT + timedelta(hours=hours), None if until is None else AT + timedelta(hours=until)
        return PriceRow("m", "USD", begins, "admitted", Rates(1, miss, 1), effective_until=ends, **owner)

    book = PriceBook(
        (
            row(100, 0),
            row(101, 6),
            row(50, 1, plan="gold"),
            row(51, 5, plan="gold"),
            row(40, 1, plan="iron"),
            row(10, 3, 4, tenant_id="ten_a"),
            row(11, 8, tenant_id="ten_a"),
            row(99, 9, 9, tenant_id="ten_a"),
        ),
        (
            Placement("ten_a", AT + timedelta(hours=2), "gold"),
            Placement("ten_a", AT + timedelta(hours=7), None),
            Placement("ten_b", AT + timedelta(hours=1), "iron"),
        ),
    )

    def misses(book: PriceBook) -> list[int]:
        return [book.row("m", "USD", AT + timedelta(hours=hour)).standard.miss for hour in range(10)]

    assert misses(book.of("ten_a")) == [100, 100, 50, 10, 50, 51, 51, 101, 11, 101]
    assert misses(book.of("ten_b")) == [100, 40, 40, 40, 40, 40, 40, 40, 40, 40]
    assert misses(book) == misses(book.of("ten_c")) == [100, 100, 100, 100, 100, 100, 101, 101, 101, 101]


def test_a_cached_token_is_billed_once_also_at_a_price_of_ones_own():
    """BerriAI/litellm#40006: with a custom price, 9,519 of 9,520 tokens are hits and only that."""
    public = book_of(Rates(14, 140, 400)).rows[0]
    own = replace(public, tenant_id="ten_a", standard=Rates(hit=7, miss=70, output=200))
    charge = rate(PriceBook((public, own)).of("ten_a"), "m", "USD", TokenUsage(9_519, 0, 0, 1, 0), AT)
    assert (charge.cache_hit, charge.cache_miss) == (9_519 * 7, 70)
    assert charge.amount == 9_519 * 7 + 70
    assert charge.price_row_id == "m/USD/2020-01-01T00:00:00Z/tenant/ten_a"


def test_a_tier_has_full_rates_of_its_own_in_each_window():
    standard = Rates(10, 100, 1000, flex=Rates(6, 60, 600), batch=Rates(5, 50, 500))
    night = Rates(8, 80, 800, flex=Rates(4, 40, 400), batch=Rates(2, 20, 200))
    book = book_of(standard, Window("night", night, time(12), time(13), "UTC"))
    usage = TokenUsage(1, 1, 0, 1, 1)
    noon, evening = AT, AT + timedelta(hours=6)
    charges = {
        (tier, at): rate(book, "m", "USD", usage, at, tier)
        for tier in ("standard", "flex", "batch")
        for at in (noon, evening)
    }
    assert [(c.amount, c.window) for c in charges.values()] == [
        (896, "night"),
        (1120, "standard"),
        (448, "night"),
        (672, "standard"),
        (224, "night"),
        (560, "standard"),
    ]
    assert {tier for tier, _ in charges} == {charge.tier for charge in charges.values()}


def test_a_tier_that_is_not_offered_is_refused_before_anything_is_held():
    book = book_of(Rates(1, 2, 3, flex=Rates(1, 1, 1)))
    with pytest.raises(TierMissing):
        rate(book, "m", "USD", TokenUsage.none(), AT, "batch")
    with pytest.raises(TierMissing):
        worst_case(book, "m", "USD", WorstCase(1, 1, AT, AT, "batch"))


def test_a_million_charges_under_a_cent_sum_to_the_last_femto_unit():
    """doublewordai/control-layer#227: nothing is truncated a request; cents are split off the sum, once."""
    charge = rate(book_of(Rates(0, 3_000_000, 3_000_000)), "m", "USD", TokenUsage(0, 0, 0, 1, 1), AT)
    assert decimal_of(charge.amount) == "0.000000006"
    assert split_cents(Femto(charge.amount * 4_999_999)) == (2, Femto(9_999_994_000_000))
    assert split_cents(Femto(charge.amount * 5_000_000)) == (3, 0)
