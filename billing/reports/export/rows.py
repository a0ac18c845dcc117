"""Rows that Python makes, in the words of a form: what `repository` has Postgres do for the others."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import msgspec

from billing.reports.export.column import Column
from billing.reports.export.delimited import safe
from billing.reports.export.order import Form

Row = Mapping[str, Any]  # by column: text, integer, aware instant, amount as decimal text, or None


def written(columns: Sequence[Column], form: Form, rows: Iterable[Row], line_end: str = "\n") -> bytes:
    """Rows as `Delimited`, `Lines` or `Parquet` take them. Instants are of UTC, with a Z."""
    if form == "jsonl":
        encode = msgspec.json.encode
        return b"".join(
            encode({column.name: _in_json(row.get(column.name)) for column in columns}) + b"\n"
            for row in rows
        )
    text = StringIO()
    writer = csv.writer(text, lineterminator=line_end)
    writer.writerows([_in_cell(column, form, row.get(column.name)) for column in columns] for row in rows)
    return text.getvalue().encode()


def _in_json(value: Any) -> Any:
    return _instant(value) if isinstance(value, datetime) else value


def _in_cell(column: Column, form: Form, value: Any) -> Any:
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}" if form == "parquet" else _instant(value)
    if column.kind == "name" and form == "csv" and value is not None:
        return safe(value)
    return value


def _instant(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
