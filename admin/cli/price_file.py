"""`kvitto price lint`, `diff`, `publish` and `export`: price books as files."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from admin.cli.book import BookFile, book_of, published, text_of
from admin.cli.options import ACTOR, DataDir, Json, directory

if TYPE_CHECKING:
    from admin.cli.output import Row
    from billing.pricing.publication import Difference


def lint(file: BookFile, _data_dir: DataDir = None) -> None:
    """Check a price book, all of it: each fault with its line, and exit status 1 if there is one.

    Example: kvitto price lint prices.toml
    """
    from admin.cli.errors import CommandFailed
    from admin.cli.output import console
    from billing.pricing import toml

    rows, faults = toml.examine(text_of(file), str(file))
    if faults:
        raise CommandFailed("\n".join(str(fault) for fault in faults))
    models = {row.model for row in rows}
    console().print(f"{file}: {len(rows)} rows of {len(models)} models, nothing wrong.", markup=False)


def diff(file: BookFile, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show what publishing a price book now would change, row by row, and what of it would be refused.

    A new row is compared with the one that it follows.

    Example: kvitto price diff prices.toml
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import Column, print_json, print_rows
    from billing.pricing.publication import compare

    book = book_of(file)
    differences = compare(book, session.run(published(directory(data_dir))), clock.now())
    if as_json:
        print_json([_row(difference) for difference in differences])
        return
    columns = (
        Column("state", ""),
        Column("row", "row", style="bold"),
        Column("what", "what"),
        Column("before", "before", right=True),
        Column("after", "after", right=True),
    )
    rows = [line for difference in differences for line in _lines(difference)]
    print_rows(rows, columns, as_json=False, empty=f"All rows of {file} are published.")


def publish(
    file: BookFile,
    actor: Annotated[str, typer.Option(metavar="WHO", help="Who does it, for the books.")] = ACTOR,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Add the rows of a price book that are not published yet: all of them, or none.

    A row of a model that has prices must take effect at least 10 s from now; if one of these rates requests
    when they complete, 610 s. Schedule it by its date.

    Example: kvitto price publish prices.toml
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json
    from billing.errors import PriceConflict
    from billing.pricing import toml

    text = text_of(file)
    book = toml.read(text, str(file))

    async def work() -> int:
        async with session.books(directory(data_dir)) as books:
            return await books.prices.publish(book, actor, clock.now())

    try:
        added = session.run(work())
    except PriceConflict as conflict:
        line = toml.lines(text).get(conflict.price_row_id)
        raise replace(conflict, file=str(file), line=line) from conflict
    if as_json:
        print_json({"file": file, "rows": len(book.rows), "added": added})
    else:
        console().print(f"{added} of {len(book.rows)} rows of {file} are new and published.", markup=False)


def export(data_dir: DataDir = None) -> None:
    """Print the published price book as TOML.

    Example: kvitto price export > prices.toml
    """
    from admin.cli import session
    from billing.pricing.writing import write

    sys.stdout.write(write(session.run(published(directory(data_dir)))))


def _row(difference: "Difference") -> "Row":
    return {
        "price_row_id": difference.row.id,
        "state": difference.state,
        "reason": difference.reason,
        "changes": [
            {"what": change.what, "before": change.before, "after": change.after}
            for change in difference.changes
        ],
    }


def _lines(difference: "Difference") -> "list[Row]":
    """What people read of a row: nothing where all is the same."""
    if difference.state == "same":
        return []
    head = {"state": difference.state, "row": difference.row.id, "what": difference.reason or ""}
    changes: list[Row] = [
        {"state": "", "row": "", "what": change.what, "before": change.before, "after": change.after}
        for change in difference.changes
    ]
    return [{**head, "before": "", "after": ""}, *changes]
