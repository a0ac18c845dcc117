"""Statements on usage events."""

from collections.abc import Collection, Iterable
from typing import Final
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.bulk import arrays, unnested
from billing.db.tables import usage_event
from billing.settlement.event import UsageEvent

_EVENT: Final = tuple(column.name for column in usage_event.c if column.server_default is None)


async def insert_events(connection: AsyncConnection, events: Iterable[UsageEvent]) -> set[UUID]:
    """Insert the events that are new, and say which were.

    In the order of their ids: two flushers with the same request wait for each other and never deadlock.
    """
    rows = [_values(event) for event in sorted(events, key=lambda event: event.request_id)]
    statement = (
        upsert(usage_event)
        .from_select(_EVENT, select(unnested(usage_event, _EVENT)))
        .on_conflict_do_nothing(index_elements=["request_id"])
        .returning(usage_event.c.request_id)
    )
    return set((await connection.execute(statement, arrays(rows, _EVENT))).scalars())


async def select_settled(connection: AsyncConnection, request_ids: Collection[UUID]) -> set[UUID]:
    """Which of the requests have an event."""
    statement = select(usage_event.c.request_id).where(usage_event.c.request_id.in_(request_ids))
    return set((await connection.execute(statement)).scalars())


def _values(event: UsageEvent) -> dict[str, object]:
    return {
        "request_id": event.request_id,
        "tenant_id": event.tenant_id,
        "key_id": event.key_id,
        "model": event.model,
        "status": event.status,
        "traffic_class": event.traffic_class,
        "admitted_at": event.admitted_at,
        "rated_at": event.rated_at,
        "cache_hit": event.usage.cache_hit,
        "cache_owed": event.usage.cache_owed,
        "cache_write": event.usage.cache_write,
        "cache_miss": event.usage.cache_miss,
        "output": event.usage.output,
        "reasoning": event.reasoning_tokens,
        "charge": event.charge.amount,
        "currency": event.charge.currency,
        "price_row_id": event.charge.price_row_id,
        "price_window": event.charge.window,
        "tier": event.charge.tier,
    }
