"""`kvitto usage`: what each request used and cost."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from admin.cli.options import INSTANT_HELP, DataDir, Json, directory, instant_of

if TYPE_CHECKING:
    from admin.cli.output import Row
    from billing.reports.usage_row import QuarantinedRow, UsageRow


def usage(  # noqa: PLR0913, PLR0917 -- each parameter is an option a person types
    tenant: Annotated[str | None, typer.Option(help="Only requests of this tenant, by name or id.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="INSTANT", help=f"Rated at or after this: {INSTANT_HELP}.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="INSTANT", help="Rated before this.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the newest N requests.")] = None,
    quarantined: Annotated[
        bool, typer.Option("--quarantined", help="Instead, requests whose usage cannot be: never billed.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show what each request used and cost, newest last: tokens by bucket, and the exact charge.

    The buckets never overlap: hit + owed + write + miss is the prompt. Owed tokens were promised by the cache
    and lost early; they cost what a hit costs.

    Example: kvitto usage --tenant demo --since 24h --json
    """
    from admin import clock
    from admin.cli import session
    from billing.reports.usage_row import UsageFilter

    now = clock.now()

    async def work() -> "tuple[list[UsageRow], list[QuarantinedRow]]":
        async with session.books(directory(data_dir)) as books:
            wanted = UsageFilter(
                tenant_id=(await books.tenancy.tenant(tenant)).id if tenant else None,
                since=_optional(since, now),
                until=_optional(until, now),
                limit=limit,
            )
            if quarantined:
                return [], await books.reports.quarantined(wanted)
            return await books.reports.usage(wanted), []

    events, impossible = session.run(work())
    if quarantined:
        _print_quarantined(impossible, as_json=as_json)
    else:
        _print(events, as_json=as_json)


def row_of(event: "UsageRow") -> "Row":
    """The row of the contract: these keys, in this order, `charge` an exact decimal string."""
    from billing.money import decimal_of

    return {
        "request_id": event.request_id,
        "tenant": event.tenant,
        "key": event.key,
        "model": event.model,
        "rated_at": event.rated_at,
        "status": event.status,
        "cache_hit": event.cache_hit,
        "cache_owed": event.cache_owed,
        "cache_write": event.cache_write,
        "cache_miss": event.cache_miss,
        "output": event.output,
        "charge": decimal_of(event.charge),
        "currency": event.currency,
    }


def _print(events: "Sequence[UsageRow]", *, as_json: bool) -> None:
    from admin.cli.output import Column, console, print_rows

    columns = (
        Column("rated_at", "rated (UTC)"),
        Column("tenant", "tenant", style="bold"),
        Column("model", "model"),
        Column("status", "status"),
        Column("cache_hit", "hit", right=True, style="green"),
        Column("cache_owed", "owed", right=True),
        Column("cache_write", "write", right=True),
        Column("cache_miss", "miss", right=True),
        Column("output", "output", right=True),
        Column("charge", "charge", right=True),
        Column("currency", ""),
        Column("request_id", "request", style="dim"),
    )
    empty = "No usage: `kvitto chat 'Hello'` makes some."
    print_rows([row_of(event) for event in events], columns, as_json=as_json, empty=empty)
    if events and not as_json:
        for currency, total in _totals(events).items():
            console().print(f"{len(events)} requests, {total} {currency} in all.", style="dim")


def _print_quarantined(requests: "Sequence[QuarantinedRow]", *, as_json: bool) -> None:
    from dataclasses import asdict

    from admin.cli.output import Column, print_rows

    columns = (
        Column("recorded_at", "recorded (UTC)"),
        Column("tenant", "tenant", style="bold"),
        Column("reason", "reason"),
        Column("request_id", "request", style="dim"),
    )
    empty = "No usage is in quarantine."
    print_rows([asdict(request) for request in requests], columns, as_json=as_json, empty=empty)


def _totals(events: "Sequence[UsageRow]") -> dict[str, str]:
    """Exact sums by currency: amounts of different currencies are never added."""
    from billing.money import Femto, decimal_of

    sums: dict[str, int] = {}
    for event in events:
        sums[event.currency] = sums.get(event.currency, 0) + event.charge
    return {currency: decimal_of(Femto(total)) for currency, total in sums.items()}


def _optional(text: str | None, now: datetime) -> datetime | None:
    return None if text is None else instant_of(text, now)
