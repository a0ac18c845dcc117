"""Usage as rows at the rates of the price book, and what a cache saved of it."""

from dataclasses import replace
from datetime import UTC, datetime, time
from typing import Any

import pytest

from billing.errors import UsageUnexplained
from billing.invoicing.lines import Side, Sum, cache_of, usage_rows
from billing.pricing.book import PriceRow
from billing.pricing.rates import Rates
from billing.pricing.window import Window

NIGHT = Window("night", Rates(hit=1, miss=11, output=5), time(22), time(6), "UTC")
ROW = PriceRow(
    model="m",
    currency="USD",
    effective_from=datetime(2026, 1, 1, tzinfo=UTC),
    instant="admitted",
    standard=Rates(hit=10, miss=100, output=50, write=70, flex=Rates(hit=7, miss=60, output=40, write=1)),
    windows=(NIGHT,),
)
PRICES = {ROW.id: ROW}
DAY = Side("period", "m", ROW.id, "standard", "standard")
USED = Sum(requests=2, cache_hit=3, cache_owed=5, cache_write=1, cache_miss=2, output=4, charge=0)
CHARGE = 3 * 10 + 5 * 10 + 70 + 2 * 100 + 4 * 50


def used(charge: int = CHARGE) -> Sum:
    return replace(USED, charge=charge)


def test_each_bucket_that_has_tokens_is_a_row_at_its_rate_and_owed_ones_cost_what_hits_cost() -> None:
    rows = usage_rows({DAY: used()}, PRICES)
    assert [(row.bucket, row.tokens, int(row.rate_femto), row.amount) for row in rows] == [
        ("cache_hit", 3, 10, 30),
        ("cache_owed", 5, 10, 50),
        ("cache_write", 1, 70, 70),
        ("cache_miss", 2, 100, 200),
        ("output", 4, 50, 200),
    ]
    assert {row.requests for row in rows} == {2}
    assert usage_rows({DAY: Sum(requests=3)}, PRICES) == (), "what failed cost nothing"


def test_windows_and_tiers_have_their_own_rates() -> None:
    night, flex = DAY._replace(window="night"), DAY._replace(tier="flex")
    sums = {night: Sum(1, cache_miss=1, charge=11), flex: Sum(1, cache_miss=1, charge=60)}
    assert [row.amount for row in usage_rows(sums, PRICES)] == [11, 60]


def test_without_a_cache_hits_and_owed_tokens_would_have_been_misses_and_owed_ones_are_our_loss() -> None:
    cache = cache_of({DAY: used(), DAY._replace(section="late"): used()}, PRICES)
    assert int(cache.charged_femto) == 2 * CHARGE
    assert int(cache.uncached_femto) == 2 * (CHARGE + (3 + 5) * 90)
    assert int(cache.saved_femto) == 2 * (3 + 5) * 90
    assert int(cache.broken_promises_femto) == 2 * 5 * 90
    assert (cache.hit_tokens, cache.owed_tokens, cache.miss_tokens) == (6, 10, 4)


@pytest.mark.parametrize(
    ("side", "charge"),
    [
        ({"price_row_id": "m/USD/1999-01-01T00:00:00Z"}, CHARGE),
        ({"window": "noon"}, CHARGE),
        ({"tier": "batch"}, CHARGE),
        ({"model": "n"}, CHARGE),
        ({}, CHARGE + 1),
    ],
)
def test_a_price_row_that_vanished_or_gives_another_sum_is_a_clear_refusal(side: Any, charge: int) -> None:
    with pytest.raises(UsageUnexplained):
        usage_rows({DAY._replace(**side): used(charge)}, PRICES)
