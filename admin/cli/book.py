"""Price books as commands read them, from the stack or a file, and the rates of a row as they show them."""

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from admin.cli.output import Row
    from billing.pricing.book import PriceBook
    from billing.pricing.rates import Rates
    from billing.usage import Tier

# Each bucket and the rate that prices it.
BUCKETS: Final = {
    "cache_hit": "hit",
    "cache_owed": "hit",
    "cache_write": "write",
    "cache_miss": "miss",
    "output": "output",
}

BookFile = Annotated[Path, typer.Argument(metavar="FILE", help="A price book in TOML.")]
OptionalBook = Annotated[
    Path | None,
    typer.Option("--book", metavar="FILE", help="A price book in TOML, instead of the published one."),
]
OfTenant = Annotated[
    str | None,
    typer.Option(
        "--tenant", help="As this tenant, by name or id, is charged: prices of its own, then of its plan."
    ),
]
OfTier = Annotated[str, typer.Option("--tier", metavar="TIER", help="standard, flex or batch.")]


def text_of(file: Path) -> str:
    """The text of a file, or of stdin for `-`; raises CommandFailed when there is none."""
    from admin.cli.errors import CommandFailed

    try:
        read = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return read.decode("utf-8")
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{file}: no text in UTF-8") from error


def book_of(file: Path) -> "PriceBook":
    """The book in a file; raises PriceInvalid with file, line and reason."""
    from billing.pricing import toml

    return toml.read(text_of(file), str(file))


async def published(data_dir: Path) -> "PriceBook":
    """The book of the running stack."""
    from admin.cli import session

    async with session.books(data_dir) as books:
        return await books.prices.book()


async def seen_by(data_dir: Path, file: Path | None, tenant: str | None) -> "PriceBook":
    """The published book or that of a file, as the public sees it or as a tenant is charged by it."""
    from admin.cli import session
    from billing.pricing.book import PriceBook

    if file is not None and tenant is None:
        return book_of(file)
    async with session.books(data_dir) as books:
        book = await books.prices.book()
        if file is not None:
            book = PriceBook(book_of(file).rows, book.placements)
        return book if tenant is None else book.of((await books.tenancy.tenant(tenant)).id)


def tier_of(text: str) -> "Tier":
    """Read a tier; raises typer.BadParameter."""
    from billing.pricing.rates import TIERS

    if text not in TIERS:
        raise typer.BadParameter(f"{text!r} is no tier: write {', '.join(TIERS)}")
    return text


def in_force(
    book: "PriceBook", model: str, currency: str, at: datetime, tier: "Tier" = "standard"
) -> "Row | None":
    """What tokens cost at an instant: price row, window, and its rates per 1M tokens; None: nothing does."""
    from billing.errors import PriceMissing

    try:
        row = book.row(model, currency, at)
    except PriceMissing:
        return None
    window, offered = row.rates_at(at)
    rates = offered.of(tier)
    return (
        None
        if rates is None
        else {
            "model": row.model,
            "currency": row.currency,
            "at": at,
            "price_row_id": row.id,
            "effective_from": row.effective_from,
            "instant": row.instant,
            "window": window,
            "tier": tier,
            "rates": rates_text(rates),
        }
    )


def rates_text(rates: "Rates") -> dict[str, str | None]:
    """Rates per 1M tokens as exact decimal strings; `write` is None where the book does not price it."""
    from billing.money import rate_text

    return {
        "hit": rate_text(rates.hit),
        "miss": rate_text(rates.miss),
        "write": None if rates.write is None else rate_text(rates.write),
        "output": rate_text(rates.output),
    }
