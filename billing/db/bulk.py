"""Many rows in one statement whose text does not depend on how many: an array of rows, unnested.

Such a statement is compiled once and runs on asyncpg itself. SQLAlchemy would spend more on each call than
Postgres on the rows, `Decimal` more than both, and an array a column as much again as all the rest: asyncpg
looks at each value of an array, and at none of a row. So rows travel in composite types of their own, which
migrations make, and money travels as text, there and back. What a type has not got keeps the default of its
column: a column may join the table while older processes still write.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from sqlalchemy import JSON, Column, ColumnElement, Table, Text, bindparam, cast, column, func, select
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.dialects.postgresql.asyncpg import dialect
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import ReturnsRows
from sqlalchemy.types import TypeEngine, UserDefinedType

from billing.db.columns import FemtoNumeric
from billing.db.transaction import driver_of

Writer = Callable[[Any], str]

_DIALECT: Final = dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's
_AS_TEXT: Final[Mapping[type[TypeEngine[Any]], Writer]] = MappingProxyType(
    {FemtoNumeric: str, JSON: lambda value: msgspec.json.encode(value).decode()}
)


class Rows:
    """Rows with some columns of a table that a statement is given, as an array of a composite type.

    Args:
        table: whose columns.
        names: of the columns, in the order of the type's.
        type_name: ``new_`` and the table's name unless said.
    """

    def __init__(self, table: Table, names: Sequence[str], type_name: str | None = None) -> None:
        self.type_name = type_name or f"new_{table.name}"
        self._table = table
        columns = [table.c[name] for name in names]
        written = [_writer(of) for of in columns]
        self._writers = [(place, writer) for place, writer in enumerate(written) if writer is not None]
        self.sent: Mapping[str, TypeEngine[Any]] = MappingProxyType(
            {of.name: Text() if writer else of.type for of, writer in zip(columns, written, strict=True)}
        )
        given = cast(bindparam(self.type_name), _ArrayOf(self.type_name))
        sent = (column(name, kind) for name, kind in self.sent.items())
        self.values = func.unnest(given).table_valued(*sent).render_derived()
        self._select = select(
            *(
                cast(self.values.c[of.name], of.type) if writer else self.values.c[of.name]
                for of, writer in zip(columns, written, strict=True)
            )
        )

    def insert(self) -> Insert:
        """All of them into their table."""
        return upsert(self._table).from_select(list(self.sent), self._select)

    def argument(self, rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """What a statement is given for these rows, their values in the order of the columns."""
        return list(map(self._written, rows)) if self._writers else list(rows)

    def _written(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        values = list(row)
        for place, writer in self._writers:
            values[place] = writer(values[place])
        return tuple(values)


class Bulk:
    """A statement on some `Rows`, without any other parameter."""

    def __init__(self, statement: ReturnsRows, *row_sets: Rows) -> None:
        compiled: Any = statement.compile(dialect=_DIALECT)
        self._text = str(compiled)
        self._parameters: list[str] = compiled.positiontup
        self._row_sets = row_sets
        assert not any(isinstance(of.type, FemtoNumeric) for of in statement.exported_columns), "as text"

    async def run(
        self, connection: AsyncConnection, *row_sets: Iterable[tuple[Any, ...]]
    ) -> Sequence[Mapping[str, Any]]:
        """Run it on rows for each of its `Rows`.

        Returns:
            The rows that the statement returns, as mappings of their columns.
        """
        arguments = {
            rows.type_name: rows.argument(values)
            for rows, values in zip(self._row_sets, row_sets, strict=True)
        }
        found: list[Mapping[str, Any]] = await driver_of(connection).fetch(
            self._text, *(arguments[name] for name in self._parameters)
        )
        return found


def as_text(money: Column[Any]) -> ColumnElement[str]:
    """How a statement returns a column of money, by its name."""
    return cast(money, Text).label(money.name)


class _ArrayOf(UserDefinedType[Any]):
    cache_ok = True

    def __init__(self, type_name: str) -> None:
        self._type_name = type_name

    def get_col_spec(self, **_: Any) -> str:
        return f"{self._type_name}[]"


def _writer(of: Column[Any]) -> Writer | None:
    """How values of a column become text, if they travel so."""
    return next((write for kind, write in _AS_TEXT.items() if isinstance(of.type, kind)), None)
