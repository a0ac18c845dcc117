"""Statements on exports that were asked for."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import RowMapping, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.pages import Page, paged
from billing.db.tables import usage_export
from billing.reports.export.files.record import UNFINISHED, ExportRecord
from billing.reports.export.order import order_of
from billing.reports.export.service import Written


async def lock_unfinished(connection: AsyncConnection, tenant_id: str | None) -> int:
    """How many exports of a tenant are not finished; whoever asks next waits for this transaction."""
    await connection.execute(
        text("SELECT pg_advisory_xact_lock(hashtext('usage_export'), hashtext(:owner))"),
        {"owner": tenant_id or ""},
    )
    c = usage_export.c
    statement = select(func.count()).where(
        c.tenant_id.is_not_distinct_from(tenant_id), c.status.in_(UNFINISHED)
    )
    return int((await connection.execute(statement)).scalar_one())


async def insert_export(connection: AsyncConnection, record: ExportRecord) -> None:
    """One that waits."""
    await connection.execute(
        insert(usage_export).values(
            id=record.id,
            tenant_id=record.order.tenant_id,
            wanted=record.order.to_builtins(),
            created_at=record.created_at,
            created_by=record.created_by,
            status=record.status,
            attempt=record.attempt,
        )
    )


async def select_export(connection: AsyncConnection, export_id: str) -> ExportRecord | None:
    """One by its id."""
    statement = select(usage_export).where(usage_export.c.id == export_id)
    row = (await connection.execute(statement)).mappings().first()
    return None if row is None else _record(row)


async def select_exports(
    connection: AsyncConnection, tenant_id: str | None, page: Page
) -> list[ExportRecord]:
    """Those of a tenant, or of all and of the operator, but for deleted ones; oldest first."""
    statement = paged(select(usage_export), usage_export, page).where(usage_export.c.status != "deleted")
    if tenant_id is not None:
        statement = statement.where(usage_export.c.tenant_id == tenant_id)
    return [_record(row) for row in (await connection.execute(statement)).mappings()]


async def claim(connection: AsyncConnection, export_id: str) -> ExportRecord | None:
    """Begin an attempt, whoever has begun before; None when there is nothing left to do."""
    c = usage_export.c
    return await _changed(
        connection,
        update(usage_export)
        .where(c.id == export_id, c.status.in_(UNFINISHED))
        .values(status="running", attempt=c.attempt + 1),
    )


async def finish(
    connection: AsyncConnection, record: ExportRecord, written: Written, kept: timedelta
) -> bool:
    """Make the file of this attempt the export's; False when another attempt has begun, or it is deleted."""
    finished = func.now()
    changed = _ours(record).values(
        status="done",
        rows=written.rows,
        size_bytes=written.size_bytes,
        sha256=written.sha256,
        finished_at=finished,
        expires_at=finished + kept,
        reason=None,
    )
    return await _changed(connection, changed) is not None


async def give_up(connection: AsyncConnection, record: ExportRecord, reason: str, *, for_good: bool) -> None:
    """Say why this attempt failed; the export waits for the next one, if there will be any."""
    status = "failed" if for_good else "waiting"
    await _changed(connection, _ours(record).values(status=status, reason=reason, finished_at=func.now()))


async def mark_deleted(connection: AsyncConnection, export_id: str) -> ExportRecord | None:
    """Let its owner be rid of it; None when there is none, or not any more."""
    c = usage_export.c
    deleted = update(usage_export).where(c.id == export_id, c.status != "deleted").values(status="deleted")
    return await _changed(connection, deleted)


async def expire(connection: AsyncConnection, at: datetime) -> None:
    """Let go of files that have been kept for long enough."""
    c = usage_export.c
    await connection.execute(
        update(usage_export).where(c.status == "done", c.expires_at <= at).values(status="expired")
    )


async def select_kept(connection: AsyncConnection) -> set[str]:
    """The names of all files that are, or are on their way."""
    found = await connection.execute(
        select(usage_export).where(usage_export.c.status.in_((*UNFINISHED, "done")))
    )
    return {_record(row).stored_name for row in found.mappings()}


def _ours(record: ExportRecord) -> Any:
    c = usage_export.c
    return update(usage_export).where(c.id == record.id, c.attempt == record.attempt, c.status == "running")


async def _changed(connection: AsyncConnection, statement: Any) -> ExportRecord | None:
    row = (await connection.execute(statement.returning(usage_export))).mappings().first()
    return None if row is None else _record(row)


def _record(row: RowMapping) -> ExportRecord:
    values = {name: value for name, value in row.items() if name not in ("tenant_id", "wanted")}
    return ExportRecord(order=order_of(row["wanted"]), **values)
