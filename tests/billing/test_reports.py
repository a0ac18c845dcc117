from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from billing.pricing.book import PriceBook
from billing.pricing.rates import Rates
from billing.pricing.rating import rate
from billing.reports.service import Reports
from billing.reports.usage_row import UsageFilter, Use, UseFilter
from billing.settlement.posting import post
from billing.usage import TokenUsage

FIRST = datetime(2026, 11, 2, 9, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
async def five(house: Any) -> list[Any]:
    """Requests an hour apart, settled in another order."""
    events = [house.event(n, at=FIRST + n * HOUR) for n in range(5)]
    await post(house.database, [events[n] for n in (3, 0, 4, 1, 2)])
    return events


async def test_rows_are_newest_last_and_say_what_the_events_say(house: Any, five: list[Any]):
    rows = await Reports(house.database).usage(UsageFilter(tenant_id=house.tenant_id))
    assert [row.request_id for row in rows] == [event.request_id for event in five]
    row, event = rows[0], five[0]
    assert (row.tenant, row.key) == ((await house.tenancy.tenant(house.tenant_id)).name, "first")
    assert (row.tenant_id, row.key_id, row.model, row.status) == (
        house.tenant_id,
        house.key_id,
        event.model,
        "completed",
    )
    assert (row.cache_hit, row.cache_owed, row.cache_write, row.cache_miss, row.output) == (
        1024,
        0,
        0,
        176,
        300,
    )
    assert (row.charge, row.currency) == (event.charge.amount, "USD")
    assert (row.price_row_id, row.price_window) == (event.charge.price_row_id, "standard")
    assert row.rated_at == FIRST


async def test_an_interval_holds_its_beginning_and_not_its_end(house: Any, five: list[Any]):
    chosen = UsageFilter(tenant_id=house.tenant_id, since=FIRST + HOUR, until=FIRST + 3 * HOUR)
    rows = await Reports(house.database).usage(chosen)
    assert [row.request_id for row in rows] == [five[1].request_id, five[2].request_id]


async def test_a_limit_keeps_the_newest_still_newest_last(house: Any, five: list[Any]):
    rows = await Reports(house.database).usage(UsageFilter(tenant_id=house.tenant_id, limit=2))
    assert [row.request_id for row in rows] == [five[3].request_id, five[4].request_id]


async def test_without_a_tenant_everyone_is_reported_and_with_one_nobody_else(house: Any, five: list[Any]):
    other = await house.other_tenant()
    await post(house.database, [other.event()])
    everyone = await Reports(house.database).usage(UsageFilter())
    assert {row.tenant_id for row in everyone} >= {house.tenant_id, other.tenant_id}
    (own,) = await Reports(house.database).usage(UsageFilter(tenant_id=other.tenant_id))
    assert own.request_id == other.request_id(0)


async def test_owed_tokens_cost_what_misses_would_have_brought_at_the_rates_of_their_time(house: Any):
    """At noon by the standard rates, at six in the evening by those of the demo book's cheaper window."""
    usage = TokenUsage(cache_hit=512, cache_owed=512, cache_write=0, cache_miss=176, output=300)
    events = []
    for number, at in enumerate((FIRST + 3 * HOUR, FIRST + 9 * HOUR)):
        event = house.event(number, at=at)
        charge = rate(house.book, event.model, "USD", usage, at)
        events.append(replace(event, usage=usage, charge=charge))
    await post(house.database, [*events, house.event(2, at=FIRST)])
    (owed,) = [row for row in await Reports(house.database).owed() if row.tenant_id == house.tenant_id]
    expected = 0
    for event in events:
        _, rates = house.book.row(event.model, "USD", event.rated_at).rates_at(event.rated_at)
        expected += 512 * (rates.miss - rates.hit)
    assert len({event.charge.amount for event in events}) == 2, "both windows are met"
    assert (owed.tokens, owed.cost, owed.currency) == (1024, expected, "USD")


async def test_owed_tokens_of_a_tier_cost_what_its_misses_would_have_brought(house: Any):
    """At noon and in the evening, whose window has rates of its own for each tier."""
    row, batch = house.book.rows[0], (Rates(2, 20, 30), Rates(1, 15, 25))
    night = replace(row.windows[0], rates=replace(row.windows[0].rates, batch=batch[1]))
    tiered = replace(row, model="tiered", standard=replace(row.standard, batch=batch[0]), windows=(night,))
    book = PriceBook((tiered,))
    await house.prices.publish(book, "test", FIRST)
    usage = TokenUsage(cache_hit=512, cache_owed=512, cache_write=0, cache_miss=176, output=300)
    events = []
    for number, at in enumerate((FIRST + 3 * HOUR, FIRST + 9 * HOUR)):
        charge = rate(book, "tiered", "USD", usage, at, "batch")
        events.append(replace(house.event(number, at=at), model="tiered", usage=usage, charge=charge))
    await post(house.database, events)
    (owed,) = [row for row in await Reports(house.database).owed() if row.tenant_id == house.tenant_id]
    assert (owed.tokens, owed.cost) == (1024, 512 * 18 + 512 * 14)


async def test_use_is_summed_over_an_interval_with_the_version_of_the_balance_that_it_counts(
    house: Any, five: list[Any]
):
    other, reports, charge = await house.other_tenant(), Reports(house.database), five[0].charge.amount
    await post(house.database, [other.event(at=FIRST + HOUR)])
    last = (await house.ledger.balance(house.tenant_id)).version
    scope = UseFilter(house.tenant_id, "tenant", house.tenant_id, FIRST + HOUR, FIRST + 3 * HOUR)
    assert await reports.use(scope) == Use(2 * charge, 2 * 1500, last)
    of_key = replace(scope, level="key", owner_id=house.key_id, model=five[0].model)
    assert await reports.use(of_key) == Use(2 * charge, 2 * 1500, last)
    for nobody in (replace(of_key, owner_id=other.key_id), replace(scope, model="other")):
        assert await reports.use(nobody) == Use(0, 0, last)
    assert await reports.use(replace(scope, tenant_id="ten_new")) == Use(0, 0, 0)
