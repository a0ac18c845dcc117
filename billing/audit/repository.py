"""Statements on the audit log."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.audit.event import GENESIS, AuditEvent, Deed
from billing.db.tables import audit_event, audit_head

_DEED: Final = [
    audit_event.c[name] for name in ("tenant_id", "actor", "action", "object", "at", "before", "after")
]

_OF_EVENT: Final = ("position", "hash", "digest", "salt")


@dataclass(frozen=True, slots=True)
class Head:
    """The end of one chain as the head says it, and as the events do; None where either is missing."""

    tenant_id: str
    position: int | None
    hash: bytes | None
    newest: int | None


async def lock_head(connection: AsyncConnection, tenant_id: str) -> tuple[int, bytes]:
    """Position and hash of the newest event; nobody else appends before this transaction ends."""
    statement = (
        insert(audit_head)
        .values(tenant_id=tenant_id, position=0, hash=GENESIS)
        .on_conflict_do_update(index_elements=["tenant_id"], set_={"position": audit_head.c.position})
        .returning(audit_head.c.position, audit_head.c.hash)
    )
    position, newest = (await connection.execute(statement)).one()
    return position, newest


async def insert_event(connection: AsyncConnection, event: AuditEvent) -> None:
    """Behind the head, which moves on. The head is locked by `lock_head`."""
    deed = event.deed
    values = {column.name: getattr(deed, column.name) for column in _DEED}
    of_event = {name: getattr(event, name) for name in _OF_EVENT}
    await connection.execute(insert(audit_event).values(**of_event, **values))
    await connection.execute(
        update(audit_head)
        .where(audit_head.c.tenant_id == deed.tenant_id)
        .values(position=event.position, hash=event.hash)
    )


async def drop_facts(connection: AsyncConnection, tenant_id: str) -> int:
    """Of all entries of a chain that is locked; returns how many are of the first format."""
    c = audit_event.c
    await connection.execute(
        update(audit_event).where(c.tenant_id == tenant_id).values(before=None, after=None, salt=None)
    )
    first = select(func.count()).where(c.tenant_id == tenant_id, c.digest.is_(None))
    return int((await connection.execute(first)).scalar_one())


async def select_heads(connection: AsyncConnection, tenant_id: str | None) -> list[Head]:
    """Of one chain, or all; both views of a chain's end are of one instant."""
    newest = (
        select(audit_event.c.tenant_id, func.max(audit_event.c.position).label("newest"))
        .group_by(audit_event.c.tenant_id)
        .subquery()
    )
    owner = func.coalesce(audit_head.c.tenant_id, newest.c.tenant_id).label("tenant_id")
    statement = (
        select(owner, audit_head.c.position, audit_head.c.hash, newest.c.newest)
        .select_from(audit_head)
        .join(newest, newest.c.tenant_id == audit_head.c.tenant_id, full=True)
        .order_by(owner)
    )
    if tenant_id is not None:
        statement = statement.where(owner == tenant_id)
    return [Head(**row) for row in (await connection.execute(statement)).mappings()]


async def select_chain(
    connection: AsyncConnection, tenant_id: str, after: int, events_max: int
) -> list[AuditEvent]:
    """Events of one chain behind a position, oldest first."""
    statement = (
        select(*(audit_event.c[name] for name in _OF_EVENT), *_DEED)
        .where(audit_event.c.tenant_id == tenant_id, audit_event.c.position > after)
        .order_by(audit_event.c.position)
        .limit(events_max)
    )
    return _events(list(await connection.execute(statement)))


async def select_newest(
    connection: AsyncConnection, tenant_id: str | None, events_max: int
) -> list[AuditEvent]:
    """The last events of one chain, or of all, newest last."""
    statement = (
        select(*(audit_event.c[name] for name in _OF_EVENT), *_DEED)
        .order_by(audit_event.c.at.desc(), audit_event.c.tenant_id, audit_event.c.position.desc())
        .limit(events_max)
    )
    if tenant_id is not None:
        statement = statement.where(audit_event.c.tenant_id == tenant_id)
    return _events(list(await connection.execute(statement)))[::-1]


def _events(rows: Sequence[Sequence[object]]) -> list[AuditEvent]:
    return [
        AuditEvent(position, Deed(*deed), newest, digest, salt)  # type: ignore[arg-type]  # columns
        for position, newest, digest, salt, *deed in rows
    ]
