"""`kvitto price`: the price book, and what is in force at an instant."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from admin.cli.options import INSTANT_HELP, DataDir, Json, directory, instant_of

if TYPE_CHECKING:
    from pathlib import Path

    from admin.cli.output import Row
    from billing.pricing.book import PriceBook, PriceRow
    from billing.pricing.rates import Rates
    from billing.pricing.window import Window

app = typer.Typer(help="Read the price book: dated rows of rates per 1M tokens.", no_args_is_help=True)

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@app.command("list")
def list_(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List every row of the price book, past and future, with its windows in JSON.

    Example: kvitto price list
    """
    from admin.cli import session
    from admin.cli.output import Column, print_rows

    book = session.run(_book(directory(data_dir)))
    columns = (
        Column("model", "model", style="bold"),
        Column("effective_from", "effective from (UTC)"),
        Column("hit", "hit", right=True, style="green"),
        Column("miss", "miss", right=True),
        Column("write", "write", right=True),
        Column("output", "output", right=True),
        Column("currency", ""),
        Column("window_names", "windows"),
        Column("instant", "rated when"),
        Column("id", "row", style="dim"),
    )
    rows = [_row(row) for row in book.rows]
    shown = rows if as_json else [_flat(row) for row in rows]
    print_rows(shown, columns, as_json=as_json, empty="The price book is empty.")


@app.command("show")
def show(
    model: Annotated[str | None, typer.Argument(help="Only this model.")] = None,
    at: Annotated[str, typer.Option(metavar="INSTANT", help=f"The instant: {INSTANT_HELP}.")] = "now",
    currency: Annotated[str | None, typer.Option(metavar="CODE", help="Only this currency.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the rates in force at an instant: the row, the window it falls in, and the rates per 1M tokens.

    Example: kvitto price show smollm2-135m-instruct --at 2026-12-01T18:00Z
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.errors import CommandFailed
    from admin.cli.output import Column, print_rows

    instant = instant_of(at, clock.now())
    book = session.run(_book(directory(data_dir)))
    rows = [
        in_force(book.row(*offer, instant), instant)
        for offer in sorted({(row.model, row.currency) for row in book.rows if row.effective_from <= instant})
        if model in (None, offer[0]) and (currency is None or currency.upper() == offer[1])
    ]
    if not rows:
        raise CommandFailed(
            f"nothing is priced at {instant.isoformat()}: `kvitto price list` shows the whole book"
        )
    columns = (
        Column("model", "model", style="bold"),
        Column("at", "at (UTC)"),
        Column("window", "window"),
        Column("hit", "hit", right=True, style="green"),
        Column("miss", "miss", right=True),
        Column("write", "write", right=True),
        Column("output", "output", right=True),
        Column("currency", "per 1M tokens"),
        Column("price_row_id", "row", style="dim"),
    )
    print_rows(rows if as_json else [_flat(row) for row in rows], columns, as_json=as_json, empty="")


async def _book(data_dir: "Path") -> "PriceBook":
    from admin.cli import session

    async with session.books(data_dir) as books:
        return await books.prices.book()


def in_force(row: "PriceRow", at: datetime) -> "Row":
    """What tokens cost at an instant: price row, window, and its rates per 1M tokens."""
    window, rates = row.rates_at(at)
    return {
        "model": row.model,
        "currency": row.currency,
        "at": at,
        "price_row_id": row.id,
        "effective_from": row.effective_from,
        "instant": row.instant,
        "window": window,
        "rates": rates_text(rates),
    }


def rates_text(rates: "Rates") -> dict[str, str | None]:
    """Rates per 1M tokens as exact decimal strings; `write` is None where the book does not price it."""
    from admin.cli.money import rate_text

    return {
        "hit": rate_text(rates.hit),
        "miss": rate_text(rates.miss),
        "write": None if rates.write is None else rate_text(rates.write),
        "output": rate_text(rates.output),
    }


def _row(row: "PriceRow") -> "Row":
    return {
        "id": row.id,
        "model": row.model,
        "currency": row.currency,
        "effective_from": row.effective_from,
        "instant": row.instant,
        "rates": rates_text(row.standard),
        "windows": [_window(window) for window in row.windows],
    }


def _window(window: "Window") -> "Row":
    return {
        "name": window.name,
        "days": [DAYS[day] for day in sorted(window.days)],
        "start": window.start.isoformat("minutes"),
        "end": window.end.isoformat("minutes"),
        "tz": window.tz,
        "holidays": window.holidays,
        "rates": rates_text(window.rates),
    }


def _flat(row: "Row") -> "Row":
    """The row with its rates as columns of their own, for the table."""
    rates = row["rates"]
    windows = row.get("windows", ())
    assert isinstance(rates, dict)
    assert isinstance(windows, Sequence)
    return {**row, **rates, "window_names": ", ".join(window["name"] for window in windows) or None}
