"""`kvitto usage`: what each request used and cost."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from admin.cli.options import INSTANT_HELP, DataDir, Json, directory, instant_of

if TYPE_CHECKING:
    from admin.cli.output import Row
    from billing.reports.usage_row import QuarantinedRow, UsageRow
    from billing.reports.usage_total import Dimension, UsageTotal

DIMENSIONS: Final = (
    *("tenant", "project", "key", "model", "traffic_class", "price_row", "window", "tier"),
    *("minute", "hour", "day", "week", "month"),
)


def usage(  # noqa: PLR0913, PLR0917  options that a person types
    tenant: Annotated[str | None, typer.Option(help="Only requests of this tenant, by name or id.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="INSTANT", help=f"Rated at or after this: {INSTANT_HELP}.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="INSTANT", help="Rated before this.")] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help=f"Add up instead, by any of these: {', '.join(DIMENSIONS)}."),
    ] = None,
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="Where days begin, and dates without an offset are.")
    ] = "UTC",
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

    Example: kvitto usage --by model,day --since 2026-12-01 --until 2027-01-01 --zone Asia/Kolkata
    """
    from admin import clock
    from admin.cli import session
    from billing.interval import Interval, zone_of
    from billing.reports.usage_row import UsageFilter
    from billing.reports.usage_total import UsageQuestion

    if by is not None and limit is not None:
        raise typer.BadParameter("rows that are added up have no newest", param_hint="--limit")
    if by is not None and quarantined:
        raise typer.BadParameter("what is never billed is not added up", param_hint="--quarantined")
    now, dimensions = clock.now(), None if by is None else _dimensions(by)
    first, end = (None if at is None else instant_of(at, now, zone_of(zone)) for at in (since, until))

    async def rows() -> "tuple[list[UsageRow], list[QuarantinedRow]]":
        async with session.books(directory(data_dir)) as books:
            tenant_id = (await books.tenancy.tenant(tenant)).id if tenant else None
            wanted = UsageFilter(tenant_id, first, end, limit)
            if quarantined:
                return [], await books.reports.quarantined(wanted)
            return await books.reports.usage(wanted), []

    async def totals(by: "tuple[Dimension, ...]") -> "list[UsageTotal]":
        async with session.books(directory(data_dir)) as books:
            tenant_id = (await books.tenancy.tenant(tenant)).id if tenant else None
            whole = Interval(first or datetime.fromtimestamp(0, UTC), end or now + timedelta(days=1))
            return await books.reports.totals(UsageQuestion(whole, by, tenant_id, zone))

    if dimensions is not None:
        _print_totals(dimensions, session.run(totals(dimensions)), zone, as_json=as_json)
        return
    events, impossible = session.run(rows())
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


def _dimensions(by: str) -> "tuple[Dimension, ...]":
    named = tuple(dict.fromkeys(one.strip() for one in by.split(",")))
    for one in named:
        if one not in DIMENSIONS:
            raise typer.BadParameter(f"{one!r} is not one of {', '.join(DIMENSIONS)}", param_hint="--by")
    return cast("tuple[Dimension, ...]", named)


def _print_totals(
    by: "tuple[Dimension, ...]", totals: "Sequence[UsageTotal]", zone: str, *, as_json: bool
) -> None:
    from admin.cli.output import Column, print_rows
    from billing.interval import zone_of
    from billing.money import decimal_of

    def of_group(one: "Dimension", total: "UsageTotal") -> str:
        value = total.group[one]
        if isinstance(value, datetime):
            return value.astimezone(zone_of(zone)).isoformat()
        return total.names.get(one, value)

    tokens = ("cache_hit", "cache_owed", "cache_write", "cache_miss", "output", "reasoning")
    rows = [
        {
            **{one: of_group(one, total) for one in by},
            "requests": total.requests,
            **{name: getattr(total, name) for name in tokens},
            "charge": decimal_of(total.charge),
            "currency": total.currency,
        }
        for total in totals
    ]
    columns = (
        *(Column(one, one.replace("_", " "), style="bold") for one in by),
        *(Column(name, name.removeprefix("cache_"), right=True) for name in ("requests", *tokens, "charge")),
        Column("currency", ""),
    )
    print_rows(rows, columns, as_json=as_json, empty="No usage: `kvitto chat 'Hello'` makes some.")
