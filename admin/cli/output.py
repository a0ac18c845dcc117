"""What the commands print: a rich table for people, one JSON document for machines."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_COLUMNS: Final = 240

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: the key of the row it shows, its heading, and how it is set."""

    key: str
    title: str
    right: bool = False
    style: str | None = None


def console(*, stderr: bool = False) -> Console:
    """A console on stdout (or stderr) that never cuts a row short when its output goes into a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else PIPE_COLUMNS)


def instant_text(instant: datetime) -> str:
    """RFC 3339 in UTC with a Z, microseconds only where there are some."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def print_json(document: object) -> None:
    """One JSON document on stdout; instants, ids and paths become strings."""
    sys.stdout.write(json.dumps(document, default=_plain, ensure_ascii=False, indent=2) + "\n")
    sys.stdout.flush()


def print_rows(rows: Sequence[Row], columns: Sequence[Column], *, as_json: bool, empty: str) -> None:
    """Print rows: all their keys as a JSON array, or the chosen columns as a table.

    Args:
        rows: what a machine gets, whole.
        columns: what people see of it, in order.
        as_json: for machines.
        empty: the sentence people read when there are no rows.
    """
    if as_json:
        print_json(list(rows))
    elif rows:
        console().print(table_of(rows, columns))
    else:
        console().print(empty, style="dim")


def table_of(rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    """Set rows as a table without outer lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.title, justify="right" if column.right else "left", style=column.style, overflow="fold"
        )
    for row in rows:
        table.add_row(*(_cell(row.get(column.key)) for column in columns))
    return table


def print_pairs(pairs: Sequence[tuple[str, object]]) -> None:
    """Print named values of one thing, a line each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, _cell(value))
    console().print(table)


def _cell(value: object) -> Text:
    """What people read in a cell; never markup, since names come from users."""
    match value:
        case None:
            return Text("-", style="dim")
        case datetime():
            return Text(value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"))
        case bool():
            return Text("yes" if value else "no")
        case int():
            return Text(f"{value:,}")
        case _:
            return Text(str(value))


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return instant_text(value)
    if isinstance(value, UUID | Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form here")
