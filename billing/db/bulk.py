"""Many rows in one statement whose text does not depend on how many: an array a column, unnested.

Such a statement is compiled once and runs on asyncpg itself. SQLAlchemy would spend more on each call than
Postgres on the rows, and `Decimal` more than both: money travels as text.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

import msgspec
from sqlalchemy import JSON, Column, Table, Text, bindparam, cast, column, func, select
from sqlalchemy.dialects.postgresql import ARRAY, Insert
from sqlalchemy.dialects.postgresql import insert as upsert
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


class Rows:
    """Rows with some columns of a table that a statement is given, an array a column."""

    def __init__(self, table: Table, names: Sequence[str]) -> None:
        self._table = table
        self._names = tuple(names)
        self._parameters = {f"{table.name}_{name}": _writer(table.c[name]) for name in names}
        arrays = map(_array, self._parameters, (table.c[name] for name in names))
        columns = (column(name, table.c[name].type) for name in names)
        self.values = func.unnest(*arrays).table_valued(*columns, name=f"new_{table.name}").render_derived()

    def insert(self) -> Insert:
        """All of them into their table."""
        return upsert(self._table).from_select(self._names, select(self.values))

    def arguments(self, rows: Iterable[Sequence[object]]) -> dict[str, Sequence[object] | None]:
        """What a statement is given for these rows, their values in the order of the columns."""
        columns = list(zip(*rows, strict=True)) or [()] * len(self._names)
        return {
            parameter: _argument(writer, values)
            for (parameter, writer), values in zip(self._parameters.items(), columns, strict=True)
        }


class Bulk:
    """A statement on some `Rows`, without any other parameter."""

    def __init__(self, statement: ClauseElement, *row_sets: Rows) -> None:
        compiled: Any = statement.compile(dialect=_DIALECT)
        self._text = str(compiled)
        self._parameters: list[str] = compiled.positiontup
        self._row_sets = row_sets

    async def run(
        self, connection: AsyncConnection, *row_sets: Iterable[Sequence[object]]
    ) -> list[dict[str, Any]]:
        """Run it on rows for each of its `Rows`.

        Returns:
            The rows that the statement returns, money as whole numbers.
        """
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        arguments: dict[str, Sequence[object] | None] = {}
        for rows, values in zip(self._row_sets, row_sets, strict=True):
            arguments |= rows.arguments(values)
        found = await driver.fetch(self._text, *(arguments[name] for name in self._parameters))
        return [{name: _whole(value) for name, value in row.items()} for row in found]


def _argument(writer: Writer | None, values: Sequence[object]) -> Sequence[object] | None:
    """A column as asyncpg takes it. None for one of nulls alone, which is what `unnest` makes of it."""
    if values and values[0] is None and all(value is None for value in values):
        return None
    return values if writer is None else list(map(writer, values))


def _writer(of: Column[Any]) -> Writer | None:
    """How values of a column become text, if they travel so."""
    return next((write for kind, write in _AS_TEXT.items() if isinstance(of.type, kind)), None)


def _array(parameter: str, of: Column[Any]) -> Any:
    if _writer(of) is None:
        return bindparam(parameter, type_=ARRAY(of.type))
    return cast(bindparam(parameter, type_=ARRAY(Text)), ARRAY(of.type))


def _whole(value: object) -> object:
    return int(value) if isinstance(value, Decimal) else value
