"""Every column of every aggregate is the sum of its rows, however and whenever the rollups were built."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from billing.db.access import OWNER, SETTLER
from billing.interval import SLOT, Interval
from billing.pricing.rating import rate
from billing.reports.rollup import Rollups
from billing.reports.service import Reports
from billing.reports.usage_total import TOKENS, Dimension, UsageQuestion
from billing.request_id import mint
from billing.settlement.event import UsageEvent
from billing.settlement.posting import post
from billing.settlement.repository import insert_events
from billing.tenancy.projects.service import Projects
from billing.usage import TokenUsage
from engine.proof.coverage import Attempt

NIGHT = datetime(2026, 11, 2, 18, 0, tzinfo=UTC)
WHOLE = Interval(NIGHT - timedelta(days=9), NIGHT + timedelta(days=9))
DIMENSIONS: tuple[Dimension, ...] = (
    *("tenant", "project", "key", "model", "traffic_class", "price_row", "window", "tier"),
    *("hour", "day", "week", "month"),
)
OFFSETS_S = st.integers(-3 * 86_400, 3 * 86_400)
EVENTS = st.lists(
    st.tuples(OFFSETS_S, st.integers(0, 9), st.integers(0, 9), st.integers(1, 9), st.integers(0, 99)),
    min_size=1,
    max_size=12,
)


def made(house: Any, number: int, drawn: tuple[int, int, int, int, int]) -> UsageEvent:
    """A request of some class, its tokens and its instant drawn."""
    at, hit, owed, miss, output = NIGHT + timedelta(seconds=drawn[0]), *drawn[1:]
    usage = TokenUsage(cache_hit=hit, cache_owed=owed, cache_write=0, cache_miss=miss, output=output)
    return replace(
        house.event(at=at),
        request_id=mint(at, secrets.token_bytes(8) + number.to_bytes(2, "big")),
        usage=usage,
        reasoning_tokens=output // 2,
        charge=replace(
            rate(house.book, house.event().model, "USD", usage, at), tier=("standard", "flex")[number % 2]
        ),
        traffic_class=("chat", "agent")[number % 2],
        attempts=(Attempt(0, "both", "w", 0, output),),
        attestations=(),
    )


def sums(events: list[UsageEvent]) -> tuple[int, ...]:
    return (
        len(events),
        *(sum(getattr(event.usage, name) for event in events) for name in TOKENS[:-1]),
        sum(event.reasoning_tokens for event in events),
        sum(event.charge.amount for event in events),
    )


async def told(
    house: Any, interval: Interval, *by: Dimension, zone: str = "UTC"
) -> dict[Any, tuple[int, ...]]:
    """By group, of the house's tenant."""
    question = UsageQuestion(interval, by, house.tenant_id, zone)
    return {
        tuple(total.group[name] for name in by): (
            total.requests,
            *(getattr(total, name) for name in TOKENS),
            total.charge,
        )
        for total in await Reports(house.database).totals(question)
    }


def by_group(events: list[UsageEvent], key: Callable[[UsageEvent], Any]) -> dict[Any, tuple[int, ...]]:
    groups: dict[Any, list[UsageEvent]] = {}
    for event in events:
        groups.setdefault((key(event),), []).append(event)
    return {group: sums(of_group) for group, of_group in groups.items()}


async def rollups(house: Any) -> list[Any]:
    async with house.database.transaction(OWNER) as connection:
        rows = await connection.execute(
            text("SELECT * FROM usage_rollup WHERE tenant_id = :tenant ORDER BY usage_rollup"),
            {"tenant": house.tenant_id},
        )
        return [tuple(row) for row in rows]


@settings(
    max_examples=8, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    drawn=EVENTS, built=st.integers(0, 12), seed=st.integers(0, 2**32), edges=st.tuples(OFFSETS_S, OFFSETS_S)
)
async def test_every_column_of_every_grouping_is_the_sum_of_its_events(
    house: Any, drawn: list[Any], built: int, seed: int, edges: tuple[int, int]
) -> None:
    """BerriAI/litellm#28009, BerriAI/litellm#32581: with rollups of some events, of all, and built again."""
    one = await house.other_tenant()
    events = [made(one, number, each) for number, each in enumerate(drawn)]
    building = Rollups(one.database, lag=timedelta(0))
    for settled in (events[:built], events):
        if not settled:
            continue
        await post(one.database, settled)
        for by in ((), *combinations(DIMENSIONS, 1), *combinations(DIMENSIONS, 2)):
            groups = await told(one, WHOLE, *by, zone="Asia/Kathmandu")
            assert tuple(map(sum, zip(*groups.values(), strict=True))) == sums(settled)
        await building.build()

    since, until = (NIGHT + timedelta(seconds=edge) for edge in sorted(edges))
    inside = [event for event in events if since <= event.rated_at < until]
    groups = await told(one, Interval(since, until), "traffic_class")
    assert groups == by_group(inside, lambda event: event.traffic_class)

    before, slots = await rollups(one), list({row[1] for row in await rollups(one)})
    assert sum(row[8] for row in before) == len(events)
    slots.sort(key=lambda slot: hash((seed, slot)))
    for slot in slots * 2:
        await building.rebuild([slot])
    assert await rollups(one) == before


@pytest.mark.parametrize(
    "zone", ["Asia/Kolkata", "Asia/Kathmandu", "America/St_Johns", "Europe/Berlin", "UTC"]
)
async def test_days_begin_where_the_zone_says(house: Any, zone: str) -> None:
    """BerriAI/litellm#22176: a day in a zone holds that day alone, from rollups and from events."""
    events = [made(house, n, (n * 900 - 43_200 + n % 2, 1, 1, 1, n)) for n in range(96)]
    await post(house.database, events)
    expected = by_group(
        events,
        lambda event: event.rated_at.astimezone(ZoneInfo(zone)).replace(
            hour=0, minute=0, second=0, microsecond=0
        ),
    )
    assert len(expected) == 2
    assert await told(house, WHOLE, "day", zone=zone) == expected
    await Rollups(house.database, lag=timedelta(0)).build()
    assert await told(house, WHOLE, "day", zone=zone) == expected
    for (first_instant,), of_day in expected.items():
        day = first_instant.date()
        assert await told(house, Interval.of_days(day, day, zone)) == {(): of_day}


@pytest.mark.parametrize("minutes", [0, 7])
async def test_an_interval_holds_its_beginning_and_not_its_end(house: Any, minutes: int) -> None:
    """BerriAI/litellm#22176: ``[since, until)``, on the edge of a slot and inside one."""
    since = NIGHT + timedelta(minutes=minutes)
    until = since + timedelta(hours=1)
    at = [since - timedelta(seconds=1), since, until - timedelta(seconds=1), until]
    events = [
        made(house, n, (int((one - NIGHT).total_seconds()), 1, 1, 1, 10**n)) for n, one in enumerate(at)
    ]
    await post(house.database, events)
    for _ in range(2):
        assert await told(house, Interval(since, until)) == {(): sums(events[1:3])}
        assert await told(house, Interval(since, since)) == {}
        await Rollups(house.database, lag=timedelta(0)).build()


async def test_an_event_that_is_seen_late_is_neither_lost_nor_counted_twice(house: Any) -> None:
    """Its transaction begins before the rollups are built, and ends afterwards."""
    building = Rollups(house.database, lag=timedelta(0))
    early, late = (made(house, n, (n, 1, 1, 1, 5)) for n in range(2))
    async with house.database.transaction(SETTLER) as connection:
        await insert_events(connection, [late])
        await post(house.database, [early])
        await building.build()
        assert await told(house, WHOLE) == {(): sums([early])}
    assert await told(house, WHOLE) == {(): sums([early, late])}
    await building.build()
    assert await told(house, WHOLE) == {(): sums([early, late])}
    assert sum(row[8] for row in await rollups(house)) == 2


async def test_a_slot_that_is_built_again_takes_in_nothing_beyond_the_watermark(house: Any) -> None:
    building = Rollups(house.database, lag=timedelta(0))
    before, after = (made(house, n, (n, 1, 1, 1, 5)) for n in range(2))
    await post(house.database, [before])
    await building.build()
    await post(house.database, [after])
    await building.rebuild([NIGHT])
    assert await told(house, WHOLE) == {(): sums([before, after])}


async def test_builders_at_once_build_what_one_would(house: Any) -> None:
    events = [made(house, n, (n * 400, 1, 1, 1, n)) for n in range(30)]
    await asyncio.gather(*(post(house.database, events[n::3]) for n in range(3)))
    await asyncio.gather(*(Rollups(house.database, lag=timedelta(0)).build() for _ in range(3)))
    assert await told(house, WHOLE) == {(): sums(events)}
    assert sum(row[8] for row in await rollups(house)) == 30


async def test_tiers_and_projects_are_told_apart_from_rollups_and_from_events(house: Any) -> None:
    project = await Projects(house.database).create(house.tenant_id, "batch", NIGHT, actor="test")
    issued = await house.tenancy.create_key(house.tenant_id, "second", NIGHT, project=project.id)
    here = [made(house, n, (n * 400, 1, 1, 1, n)) for n in range(6)]
    there = [made(replace(house, key_id=issued.key.id), n, (n * 400, 1, 1, 1, 10 + n)) for n in range(10, 15)]
    of_key = {key.id: key.project_id for key in await house.tenancy.keys(house.tenant_id)}
    await post(house.database, [*here, *there])
    for _ in range(2):
        assert await told(house, WHOLE, "tier") == by_group([*here, *there], lambda e: e.charge.tier)
        assert await told(house, WHOLE, "project") == by_group([*here, *there], lambda e: of_key[e.key_id])
        await Rollups(house.database, lag=timedelta(0)).build()
    question = UsageQuestion(WHOLE, ("project", "key", "tier"), house.tenant_id)
    totals = await Reports(house.database).totals(question)
    assert {(t.names["project"], t.names["key"], t.group["tier"], t.requests) for t in totals} == {
        ("default", "first", "standard", 3), ("default", "first", "flex", 3),
        ("batch", "second", "standard", 3), ("batch", "second", "flex", 2),
    }  # fmt: skip


async def test_everybody_together_is_the_sum_of_all_tenants(house: Any) -> None:
    other = await house.other_tenant()
    for one in (house, other):
        await post(one.database, [made(one, n, (n * 400, 1, 1, 1, n)) for n in range(5)])
    question = UsageQuestion(WHOLE, ("tenant", "key"))
    totals = {total.group["tenant"]: total for total in await Reports(house.database).totals(question)}
    assert {house.tenant_id, other.tenant_id} <= totals.keys()
    assert totals[other.tenant_id].names["key"] == "first"
    assert await told(house, WHOLE, "tenant") != await told(other, WHOLE, "tenant")
    assert Interval(NIGHT, NIGHT + SLOT).slots == Interval(NIGHT, NIGHT + SLOT)
