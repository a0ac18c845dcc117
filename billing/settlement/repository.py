"""Statements on usage events, on the idempotency keys that they answer, and on usage that is put aside."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime
from operator import attrgetter
from typing import Final
from uuid import UUID

from sqlalchemy import delete, select, text, union_all
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.bulk import Bulk, Rows
from billing.db.tables import idempotency_record, usage_event, usage_quarantine
from billing.errors import StoreRefused
from billing.ledger import repository as ledger
from billing.money import ZERO, Femto
from billing.receipts import repository as receipts
from billing.settlement.event import UsageEvent
from billing.settlement.idempotency import ANSWERED, IdempotencyRecord
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
    "tier": "charge.tier",
}
_attempt: Final = attrgetter("attempt", "stage", "worker", "output_from", "output_to")
_values: Final = attrgetter(*_COLUMNS.values())
_events: Final = Rows(usage_event, (*_COLUMNS, "attempts"))
_fresh: Final = (
    _events.insert()
    .on_conflict_do_nothing(index_elements=["request_id"])
    .returning(usage_event.c.request_id, usage_event.c.tenant_id, usage_event.c.rated_at)
    .cte("fresh")
)
_RECORD: Final = Bulk(
    select(_fresh.c.request_id).add_cte(
        ledger.opening(
            select(_fresh.c.request_id, _fresh.c.tenant_id, text("'charge'"), _fresh.c.rated_at)
        ).cte("charges"),
        receipts.KEEP.cte("attested"),
    ),
    *(_events, receipts.ATTESTATIONS),
)
_ANSWER: Final = tuple(column.name for column in idempotency_record.c)
_answer: Final = attrgetter(*_ANSWER)
_answers: Final = Rows(idempotency_record, _ANSWER)
_taking: Final = _answers.insert()
_INSERT_ANSWERS: Final = Bulk(
    _taking.on_conflict_do_update(
        index_elements=["tenant_id", "key_digest"],
        set_={name: _taking.excluded[name] for name in _ANSWER},
        where=idempotency_record.c.expires_at <= _taking.excluded.created_at,
    ).returning(idempotency_record.c.request_id),
    _answers,
)


def _row(event: UsageEvent) -> tuple[object, ...]:
    return (*_values(event), list(map(_attempt, event.attempts)))


async def insert_events(connection: AsyncConnection, events: Sequence[UsageEvent]) -> Sequence[UsageEvent]:
    """Insert the events that are new, with the transactions of their charges, and return those.

    The attestations of all are kept.

    Give them in the order of their ids: two flushers with the same request wait for each other and never
    deadlock.
    """
    documents = ((e.request_id, e.tenant_id, attested) for e in events for attested in e.attestations)
    inserted = await _RECORD.run(connection, map(_row, events), receipts.attestation_rows(documents))
    if len(inserted) == len(events):
        return events
    new_ids = {row["request_id"] for row in inserted}
    return [event for event in events if event.request_id in new_ids]


async def select_settled(connection: AsyncConnection, request_ids: Collection[UUID]) -> set[UUID]:
    """Which of the requests have an event, or never will: they are in quarantine."""
    found = (
        select(table.c.request_id).where(table.c.request_id.in_(request_ids))
        for table in (usage_event, usage_quarantine)
    )
    return set((await connection.execute(union_all(*found))).scalars())


async def select_charge(connection: AsyncConnection, request_id: UUID) -> Femto:
    """Zero when there is no event."""
    statement = select(usage_event.c.charge).where(usage_event.c.request_id == request_id)
    return (await connection.execute(statement)).scalar() or ZERO


async def insert_answers(connection: AsyncConnection, records: Collection[IdempotencyRecord]) -> None:
    """Take the keys of these records, of expired ones too; in their order, so that two never deadlock.

    Raises:
        StoreRefused: by `ANSWERED`, when another request has one of them.
    """
    if not records:
        return
    by_key = {(record.tenant_id, record.key_digest): record for record in records}
    taken = await _INSERT_ANSWERS.run(connection, (_answer(by_key[key]) for key in sorted(by_key)))
    if len(taken) < len(records):
        raise StoreRefused(ANSWERED, "another request has answered this idempotency key")


async def insert_lost(connection: AsyncConnection, record: IdempotencyRecord) -> None:
    """Unless the key has its record."""
    values = dict(zip(_ANSWER, _answer(record), strict=True))
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


async def delete_answers_of(connection: AsyncConnection, tenant_id: str) -> int:
    """Which requests have answered a tenant's idempotency keys; returns how many that was."""
    statement = (
        delete(idempotency_record)
        .where(idempotency_record.c.tenant_id == tenant_id)
        .returning(idempotency_record.c.request_id)
    )
    return len((await connection.execute(statement)).all())


async def delete_expired_answers(connection: AsyncConnection, at: datetime) -> int:
    """Returns how many there were."""
    statement = delete(idempotency_record).where(idempotency_record.c.expires_at <= at)
    return (await connection.execute(statement)).rowcount


async def insert_quarantined(connection: AsyncConnection, usage: Quarantined) -> None:
    """Put it aside, unless it has been."""
    # Postgres keeps no NUL in a text, and one may be what was refused.
    values = {
        name: value.replace("\0", "") if isinstance(value, str) else value
        for name, value in asdict(usage).items()
    }
    await connection.execute(upsert(usage_quarantine).values(values).on_conflict_do_nothing())
