"""Many rows in one statement whose text does not depend on how many: an array a column, unnested.

Such a statement is compiled once and runs on asyncpg itself. SQLAlchemy would spend more on each call than
Postgres on the rows, and `Decimal` more than both: money travels as text.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

import msgspec
from sqlalchemy import JSON, Table, TableValuedAlias, Text, bindparam, cast, column, func
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql.asyncpg import dialect
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import ClauseElement
from sqlalchemy.types import TypeEngine

from billing.db.columns import FemtoNumeric

Writer = Callable[[Any], str]

_DIALECT: Final = dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's
_AS_TEXT: Final[Mapping[type[TypeEngine[Any]], Writer]] = MappingProxyType(
    {FemtoNumeric: str, JSON: lambda value: msgspec.json.encode(value).decode()}
)


def unnested(table: Table, names: Sequence[str]) -> TableValuedAlias:
    """Rows with these columns of ``table``: those that `Bulk` is given."""
    columns = [table.c[name] for name in names]
    values = func.unnest(*(_array(name, table) for name in names))
    rows = values.table_valued(*(column(c.name, c.type) for c in columns), name="rows")
    return rows.render_derived()


class Bulk:
    """A statement on ``unnested(table, names)``, without any other parameter."""

    def __init__(self, statement: ClauseElement, table: Table, names: Sequence[str]) -> None:
        compiled: Any = statement.compile(dialect=_DIALECT)
        assert compiled.positiontup == list(names), f"{compiled.positiontup} are not {names}"
        self._text = str(compiled)
        self._writers = [_writer(name, table) for name in names]

    async def run(
        self, connection: AsyncConnection, rows: Iterable[Sequence[object]]
    ) -> list[dict[str, Any]]:
        """Run it on rows of ``names``, in their order; without any it is not run.

        Returns:
            The rows that the statement returns, money as whole numbers.
        """
        columns = list(zip(*rows, strict=True))
        if not columns:
            return []
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        found = await driver.fetch(self._text, *map(_argument, self._writers, columns))
        return [{name: _whole(value) for name, value in row.items()} for row in found]


def _argument(writer: Writer | None, column: Sequence[object]) -> Sequence[object] | None:
    """A column as asyncpg takes it. None for one of nulls alone, which is what `unnest` makes of it."""
    if column[0] is None and all(value is None for value in column):
        return None
    return column if writer is None else list(map(writer, column))


def _writer(name: str, table: Table) -> Writer | None:
    """How values of a column become text, if they travel so."""
    return next((write for kind, write in _AS_TEXT.items() if isinstance(table.c[name].type, kind)), None)


def _array(name: str, table: Table) -> Any:
    kind = table.c[name].type
    if _writer(name, table) is None:
        return bindparam(name, type_=ARRAY(kind))
    return cast(bindparam(name, type_=ARRAY(Text)), ARRAY(kind))


def _whole(value: object) -> object:
    return int(value) if isinstance(value, Decimal) else value
