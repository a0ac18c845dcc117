"""Statements on usage events, and on the idempotency keys that they answer."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.bulk import arrays, unnested
from billing.db.tables import idempotency_record, usage_event
from billing.errors import StoreRefused
from billing.money import ZERO, Femto
from billing.settlement.event import UsageEvent
from billing.settlement.idempotency import ANSWERED, IdempotencyRecord

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


async def select_charge(connection: AsyncConnection, request_id: UUID) -> Femto:
    """Zero when there is no event."""
    statement = select(usage_event.c.charge).where(usage_event.c.request_id == request_id)
    return (await connection.execute(statement)).scalar() or ZERO


async def insert_answers(connection: AsyncConnection, records: Sequence[IdempotencyRecord]) -> None:
    """Take the keys of these records, of expired ones too.

    Raises:
        StoreRefused: by `ANSWERED`, when another request has one of them.
    """
    for record in sorted(records, key=lambda record: (record.tenant_id, record.key_digest)):
        values = {column.name: getattr(record, column.name) for column in idempotency_record.c}
        statement = (
            upsert(idempotency_record)
            .values(values)
            .on_conflict_do_update(
                index_elements=["tenant_id", "key_digest"],
                set_=values,
                where=idempotency_record.c.expires_at <= record.created_at,
            )
            .returning(idempotency_record.c.request_id)
        )
        if (await connection.execute(statement)).first() is None:
            raise StoreRefused(ANSWERED, "another request has answered this idempotency key")


async def insert_lost(connection: AsyncConnection, record: IdempotencyRecord) -> None:
    """Unless the key has its record."""
    values = {column.name: getattr(record, column.name) for column in idempotency_record.c}
    await connection.execute(upsert(idempotency_record).values(values).on_conflict_do_nothing())


async def select_answer(
    connection: AsyncConnection, tenant_id: str, key_digest: bytes, at: datetime
) -> IdempotencyRecord | None:
    """One that has not expired by ``at``."""
    found = idempotency_record.c
    statement = select(
        found.tenant_id, found.key_digest, found.body_digest, found.request_id, found.created_at, found.status
    ).where(found.tenant_id == tenant_id, found.key_digest == key_digest, found.expires_at > at)
    row = (await connection.execute(statement)).mappings().first()
    return None if row is None else IdempotencyRecord(**row)


async def delete_expired_answers(connection: AsyncConnection, at: datetime) -> int:
    """Returns how many there were."""
    statement = delete(idempotency_record).where(idempotency_record.c.expires_at <= at)
    return (await connection.execute(statement)).rowcount


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
