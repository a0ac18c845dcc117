"""Statements on usage events, and on usage that is put aside."""

from collections.abc import Collection, Iterable
from dataclasses import asdict
from operator import attrgetter
from typing import Final
from uuid import UUID

from sqlalchemy import select, union_all
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.bulk import Bulk, Rows
from billing.db.tables import usage_event, usage_quarantine
from billing.settlement.event import UsageEvent
from billing.settlement.quarantine import Quarantined

# Each column but the attempts, and where in an event its value is.
_COLUMNS: Final = {
    "request_id": "request_id",
    "tenant_id": "tenant_id",
    "key_id": "key_id",
    "model": "model",
    "status": "status",
    "traffic_class": "traffic_class",
    "admitted_at": "admitted_at",
    "rated_at": "rated_at",
    "cache_hit": "usage.cache_hit",
    "cache_owed": "usage.cache_owed",
    "cache_write": "usage.cache_write",
    "cache_miss": "usage.cache_miss",
    "output": "usage.output",
    "reasoning": "reasoning_tokens",
    "charge": "charge.amount",
    "currency": "charge.currency",
    "price_row_id": "charge.price_row_id",
    "price_window": "charge.window",
}
_values: Final = attrgetter(*_COLUMNS.values())
_events: Final = Rows(usage_event, (*_COLUMNS, "attempts"))
_INSERT: Final = Bulk(
    _events.insert()
    .on_conflict_do_nothing(index_elements=["request_id"])
    .returning(usage_event.c.request_id),
    _events,
)


def _row(event: UsageEvent) -> tuple[object, ...]:
    attempts = [(a.attempt, a.stage, a.worker, a.output_from, a.output_to) for a in event.attempts]
    return (*_values(event), attempts)


async def insert_events(connection: AsyncConnection, events: Iterable[UsageEvent]) -> set[UUID]:
    """Insert the events that are new, and say which were.

    Give them in the order of their ids: two flushers with the same request wait for each other and never
    deadlock.
    """
    return {row["request_id"] for row in await _INSERT.run(connection, map(_row, events))}


async def select_settled(connection: AsyncConnection, request_ids: Collection[UUID]) -> set[UUID]:
    """Which of the requests have an event, or never will: they are in quarantine."""
    found = (
        select(table.c.request_id).where(table.c.request_id.in_(request_ids))
        for table in (usage_event, usage_quarantine)
    )
    return set((await connection.execute(union_all(*found))).scalars())


async def insert_quarantined(connection: AsyncConnection, usage: Quarantined) -> None:
    """Put it aside, unless it has been."""
    # Postgres keeps no NUL in a text, and one may be what was refused.
    values = {
        name: value.replace("\0", "") if isinstance(value, str) else value
        for name, value in asdict(usage).items()
    }
    await connection.execute(upsert(usage_quarantine).values(values).on_conflict_do_nothing())
