"""`kvitto price`: the price book, and what is in force at an instant."""

from typing import TYPE_CHECKING, Annotated, cast

import typer

from admin.cli import plan, price_file, price_rating
from admin.cli.book import (
    OfTenant,
    OfTier,
    OptionalBook,
    in_force,
    published,
    rates_text,
    seen_by,
    tier_of,
)
from admin.cli.options import INSTANT_HELP, DataDir, Json, directory, instant_of

if TYPE_CHECKING:
    from admin.cli.output import Row
    from billing.pricing.book import PriceRow
    from billing.pricing.rates import Rates
    from billing.pricing.window import Window

app = typer.Typer(
    help="Keep the price book: dated rows of rates per 1M tokens, appended and never edited.",
    no_args_is_help=True,
)
app.command("rate")(price_rating.rate)
app.command("lint")(price_file.lint)
app.command("diff")(price_file.diff)
app.command("publish")(price_file.publish)
app.command("export")(price_file.export)
app.command("replay")(price_rating.replay)
app.add_typer(plan.app, name="plan")


@app.command("list")
def list_(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List every row of the price book, past and future, with its windows in JSON.

    Example: kvitto price list
    """
    from admin.cli import session
    from admin.cli.output import Column, print_rows

    book = session.run(published(directory(data_dir)))
    columns = (
        Column("model", "model", style="bold"),
        Column("effective_from", "effective from (UTC)"),
        Column("hit", "hit", right=True, style="green"),
        Column("miss", "miss", right=True),
        Column("write", "write", right=True),
        Column("output", "output", right=True),
        Column("currency", ""),
        Column("window_names", "windows"),
        Column("tier_names", "tiers"),
        Column("instant", "rated when"),
        Column("id", "row", style="dim"),
    )
    rows = [_row(row) for row in book.rows]
    shown = rows if as_json else [_flat(row) for row in rows]
    print_rows(shown, columns, as_json=as_json, empty="The price book is empty.")


@app.command("show")
def show(  # noqa: PLR0913, PLR0917 -- each parameter is an option a person types
    model: Annotated[str | None, typer.Argument(help="Only this model.")] = None,
    at: Annotated[str, typer.Option(metavar="INSTANT", help=f"The instant: {INSTANT_HELP}.")] = "now",
    currency: Annotated[str | None, typer.Option(metavar="CODE", help="Only this currency.")] = None,
    tier: OfTier = "standard",
    tenant: OfTenant = None,
    book: OptionalBook = None,
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

    instant, asked = instant_of(at, clock.now()), tier_of(tier)
    seen = session.run(seen_by(directory(data_dir), book, tenant))
    rows = [
        found
        for offer in sorted({(row.model, row.currency) for row in seen.rows})
        if model in (None, offer[0]) and (currency is None or currency.upper() == offer[1])
        if (found := in_force(seen, *offer, instant, asked)) is not None
    ]
    if not rows:
        raise CommandFailed(
            f"nothing is priced at {instant.isoformat()}: `kvitto price list` shows the whole book"
        )
    columns = (
        Column("model", "model", style="bold"),
        Column("at", "at (UTC)"),
        Column("window", "window"),
        Column("tier", "tier"),
        Column("hit", "hit", right=True, style="green"),
        Column("miss", "miss", right=True),
        Column("write", "write", right=True),
        Column("output", "output", right=True),
        Column("currency", "per 1M tokens"),
        Column("price_row_id", "row", style="dim"),
    )
    print_rows(rows if as_json else [_flat(row) for row in rows], columns, as_json=as_json, empty="")


def _row(row: "PriceRow") -> "Row":
    return {
        "id": row.id,
        "model": row.model,
        "currency": row.currency,
        "plan": row.plan,
        "tenant_id": row.tenant_id,
        "effective_from": row.effective_from,
        "effective_until": row.effective_until,
        "instant": row.instant,
        "rates": rates_text(row.standard),
        "tiers": _tiers(row.standard),
        "windows": [_window(window) for window in row.windows],
    }


def _window(window: "Window") -> "Row":
    from billing.pricing.toml import DAYS

    return {
        "name": window.name,
        "days": [DAYS[day] for day in sorted(window.days)],
        "start": window.start.isoformat("minutes"),
        "end": window.end.isoformat("minutes"),
        "tz": window.tz,
        "holidays": window.holidays,
        "rates": rates_text(window.rates),
        "tiers": _tiers(window.rates),
    }


def _tiers(rates: "Rates") -> dict[str, dict[str, str | None]]:
    """The rates of each tier but the standard one."""
    return {tier: rates_text(each) for tier, each in rates.offered.items() if tier != "standard"}


def _flat(row: "Row") -> "Row":
    """The row with its rates as columns of their own, for the table."""
    rates = cast("dict[str, str]", row["rates"])
    windows = cast("list[Row]", row.get("windows", ()))
    names = ", ".join(dict.fromkeys(str(window["name"]) for window in windows))
    tiers = ", ".join(cast("dict[str, object]", row.get("tiers", {})))
    return {**row, **rates, "window_names": names or None, "tier_names": tiers or None}
