"""Rows on their way out of Postgres in bulk: its own ``COPY … TO STDOUT``, which no row of Python slows."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.dialects.postgresql.asyncpg import dialect
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.transaction import driver_of

_DIALECT: Final = dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's

# JSON has no control characters: with these for quotes and commas, a line of "CSV" is the text as it is.
AS_IT_IS: Final[Mapping[str, str]] = {"quote": "\x01", "delimiter": "\x02"}


async def copy_out(
    connection: AsyncConnection,
    query: str,
    values: Mapping[str, Any],
    take: Callable[[bytes], Awaitable[None]],
    options: Mapping[str, str] | None = None,
) -> int:
    """Hand the rows of a query on as CSV of Postgres' dialect: LF behind each row, null is nothing.

    Args:
        connection: of an open transaction.
        query: with named parameters, as `sqlalchemy.text` reads them.
        values: of the parameters.
        take: waits as long as it likes: no more is read from the server meanwhile.
        options: of COPY.

    Returns:
        How many rows there were.
    """
    compiled: Any = text(query).compile(dialect=_DIALECT)
    arguments = [values[name] for name in compiled.positiontup]
    ended = await driver_of(connection).copy_from_query(
        str(compiled), *arguments, output=take, format="csv", **(options or {})
    )
    return int(ended.removeprefix("COPY "))
