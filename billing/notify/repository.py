"""Statements on notices and their deliveries."""

from typing import Any, Final

from sqlalchemy import RowMapping, literal, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.pages import Page
from billing.db.tables import notice, webhook_delivery, webhook_endpoint
from billing.notify.notice import KeptNotice, Notice

_NOTICE: Final = ("tenant_id", "kind", "at", "facts", "dedupe")


async def insert_notice(connection: AsyncConnection, kept: KeptNotice) -> bool:
    """False when its occasion has been told. Waits for a transaction that is about to tell it."""
    values: dict[str, Any] = {name: getattr(kept.notice, name) for name in _NOTICE}
    statement = (
        insert(notice)
        .values(id=kept.id, **values)
        .on_conflict_do_nothing(index_elements=["tenant_id", "dedupe"])
        .returning(notice.c.id)
    )
    return (await connection.execute(statement)).first() is not None


async def insert_deliveries(connection: AsyncConnection, kept: KeptNotice) -> None:
    """One for each enabled endpoint of the tenant that wants the kind, due at once."""
    endpoint, told = webhook_endpoint.c, kept.notice
    wanting = select(literal(kept.id), endpoint.tenant_id, literal(told.at), endpoint.id).where(
        endpoint.tenant_id == told.tenant_id,
        endpoint.enabled,
        or_(endpoint.kinds.is_(None), endpoint.kinds.contains([told.kind])),
    )
    names = ["notice_id", "tenant_id", "due_at", "endpoint_id"]
    await connection.execute(insert(webhook_delivery).from_select(names, wanting))


async def select_notices(connection: AsyncConnection, tenant_id: str, page: Page) -> list[KeptNotice]:
    """Oldest first."""
    statement = (
        select(notice).where(notice.c.tenant_id == tenant_id).order_by(notice.c.id).limit(page.rows_max)
    )
    if page.after is not None:
        statement = statement.where(notice.c.id > page.after)
    return [kept_notice(row) for row in (await connection.execute(statement)).mappings()]


def kept_notice(row: RowMapping) -> KeptNotice:
    """Read a row of the table."""
    return KeptNotice(row["id"], Notice(**{name: row[name] for name in _NOTICE}))
