"""Statements on aliases."""

from typing import Final

from sqlalchemy import delete, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.catalog.alias import Alias
from billing.db.tables import model_alias

_CHANGING: Final = 0x616C6961  # advisory lock, "alia"


async def select_aliases(connection: AsyncConnection) -> list[Alias]:
    """All rows, by pattern."""
    rows = await connection.execute(select(model_alias).order_by(model_alias.c.pattern))
    return [Alias(**row) for row in rows.mappings()]


async def lock_alias(connection: AsyncConnection, pattern: str) -> Alias | None:
    """One row, if it is there; nobody else sets or removes any before this transaction ends."""
    await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CHANGING})
    statement = select(model_alias).where(model_alias.c.pattern == pattern)
    row = (await connection.execute(statement)).mappings().first()
    return None if row is None else Alias(**row)


async def upsert_alias(connection: AsyncConnection, alias: Alias) -> None:
    """In place of the pattern's row, if there is one."""
    values = {"model": alias.model, "set_at": alias.set_at, "set_by": alias.set_by}
    statement = insert(model_alias).values(pattern=alias.pattern, **values)
    await connection.execute(statement.on_conflict_do_update(index_elements=["pattern"], set_=values))


async def delete_alias(connection: AsyncConnection, pattern: str) -> None:
    """Of this pattern."""
    await connection.execute(delete(model_alias).where(model_alias.c.pattern == pattern))
