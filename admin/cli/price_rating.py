"""`kvitto price rate` and `replay`: usage, of one request or recorded, rated by a price book."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from admin.cli.book import (
    BUCKETS,
    OfTenant,
    OfTier,
    OptionalBook,
    book_of,
    in_force,
    seen_by,
    text_of,
    tier_of,
)
from admin.cli.options import INSTANT_HELP, DataDir, Json, directory, instant_of

if TYPE_CHECKING:
    from admin.cli.output import Row
    from billing.pricing.replay import Total
    from billing.usage import TokenUsage


def rate(  # noqa: PLR0913, PLR0917 -- each parameter is an option a person types
    model: Annotated[str, typer.Argument(help="The model that was used.")],
    usage: Annotated[
        Path, typer.Option(metavar="FILE", help="A usage object, or an answer that holds one; - is stdin.")
    ],
    at: Annotated[str, typer.Option(metavar="INSTANT", help=f"The instant: {INSTANT_HELP}.")] = "now",
    currency: Annotated[
        str | None, typer.Option(metavar="CODE", help="[dim]\\[default: USD, where it has a price][/dim]")
    ] = None,
    tier: OfTier = "standard",
    tenant: OfTenant = None,
    book: OptionalBook = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Rate a usage object of OpenAI's, DeepSeek's or Anthropic's at an instant, exact to the last decimal.

    Example: kvitto price rate deepseek-flash --at 2026-09-21T01:00Z --usage usage.json
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import print_json, print_pairs
    from billing.money import decimal_of
    from billing.pricing import rating

    used, instant, asked = _usage_of(usage), instant_of(at, clock.now()), tier_of(tier)
    seen = session.run(seen_by(directory(data_dir), book, tenant))
    offered = sorted({row.currency for row in seen.rows if row.model == model})
    paid = currency.upper() if currency else offered[0] if offered and "USD" not in offered else "USD"
    charge = rating.rate(seen, model, paid, used, instant, asked)
    shown: dict[str, Any] = {
        **(in_force(seen, model, paid, instant, asked) or {}),
        "usage": {bucket: getattr(used, bucket) for bucket in BUCKETS},
        "charges": {bucket: decimal_of(getattr(charge, bucket)) for bucket in BUCKETS},
        "charge": decimal_of(charge.amount),
    }
    if as_json:
        print_json(shown)
        return
    buckets = [
        (
            bucket.replace("_", " "),
            f"{shown['usage'][bucket]:,} tokens at {shown['rates'][name]}: {shown['charges'][bucket]} {paid}",
        )
        for bucket, name in BUCKETS.items()
        if shown["usage"][bucket]
    ]
    by = f"price row {charge.price_row_id}, window {charge.window}, tier {charge.tier}"
    print_pairs([*buckets, ("charge", f"{shown['charge']} {paid}"), ("rated by", by)])


def replay(
    book: Annotated[Path, typer.Option(metavar="FILE", help="The other price book, in TOML.")],
    since: Annotated[str, typer.Option(metavar="INSTANT", help=f"Rated at or after this: {INSTANT_HELP}.")],
    until: Annotated[str, typer.Option(metavar="INSTANT", help="Rated before this.")] = "now",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Rate recorded usage by another price book, and show the difference for each tenant. Nothing is changed.

    With the published book (`kvitto price export`) it comes to what the ledger took, exactly.

    Example: kvitto price replay --book new.toml --since 30d
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import Column, print_rows

    now, other = clock.now(), book_of(book)

    async def work() -> "list[Row]":
        async with session.books(directory(data_dir)) as books:
            names = {tenant.id: tenant.name for tenant in await books.tenancy.tenants()}
            totals = await books.prices.replay(other, instant_of(since, now), instant_of(until, now))
        return [_total(tenant_id, names, currency, total) for (tenant_id, currency), total in totals.items()]

    columns = (
        Column("tenant", "tenant", style="bold"),
        Column("requests", "requests", right=True),
        Column("unpriced", "without a price", right=True),
        Column("ledger", "ledger", right=True),
        Column("rated", "by this book", right=True),
        Column("difference", "difference", right=True, style="green"),
        Column("currency", ""),
    )
    print_rows(session.run(work()), columns, as_json=as_json, empty="No usage was recorded then.")


def _total(tenant_id: str, names: Mapping[str, str], currency: str, total: "Total") -> "Row":
    from billing.money import decimal_of

    return {
        "tenant": names[tenant_id],
        "tenant_id": tenant_id,
        "currency": currency,
        "requests": total.requests,
        "unpriced": total.unpriced,
        "ledger": decimal_of(total.posted),
        "rated": decimal_of(total.rated),
        "difference": decimal_of(total.difference),
    }


def _usage_of(file: Path) -> "TokenUsage":
    """The buckets of a usage object in a file; raises CommandFailed when they are none."""
    from admin.cli.errors import CommandFailed
    from billing.usage import TokenUsage
    from recipe.errors import UsageMalformed
    from recipe.usage import read_usage

    try:
        document = json.loads(text_of(file))
    except (ValueError, RecursionError) as error:
        raise CommandFailed(f"{file}: no JSON: {error}") from error
    used = document.get("usage", document) if isinstance(document, dict) else None
    if not isinstance(used, dict):
        raise CommandFailed(f"{file}: no usage object")
    try:
        read = read_usage(used)
    except UsageMalformed as error:
        raise CommandFailed(f"{file}: {error}") from error
    return TokenUsage(read.hit, read.owed, read.write, read.miss, read.output)
