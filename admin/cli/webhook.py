"""`kvitto webhook`: where tenants are told what happens to them."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from admin.cli.options import ACTOR, INSTANT_HELP, DataDir, Json, directory, duration_of, instant_of
from billing.notify.kind import KINDS, Kind

if TYPE_CHECKING:
    from billing.notify.endpoint import Delivery, Endpoint, IssuedEndpoint

app = typer.Typer(
    help="Post notices of a tenant to URLs of its own: low balance, budgets, invoices, prices, promises.",
    no_args_is_help=True,
)

TEST_WAIT_S: Final = 25.0
TEST_POLL_S: Final = 0.25

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK_ID", help="From `kvitto webhook list`.")]


@app.command("add")
def add(
    tenant: Annotated[str, typer.Argument(help="Name or id of the tenant.")],
    url: Annotated[str, typer.Argument(help="Where to: https://…")],
    kind: Annotated[
        list[str] | None,
        typer.Option(help=f"Only notices of this kind; may be given again: {', '.join(KINDS)}."),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Add a webhook. Its secret, by which receivers check signatures, is shown this once.

    Example: kvitto webhook add acme https://example.com/kvitto --kind balance.low --kind budget.reached
    """
    from admin import clock
    from admin.cli import session

    wanted = frozenset(map(_kind, kind)) if kind else None

    async def work() -> "IssuedEndpoint":
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            return await books.webhooks.add(owner.id, url, wanted, clock.now(), actor=ACTOR)

    _print_issued(session.run(work()), as_json)


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only webhooks of this tenant, by name or id.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List webhooks, and which of them fail.

    Example: kvitto webhook list --tenant acme
    """
    from admin.cli import session
    from admin.cli.output import Column, Row, print_rows

    async def work() -> list[Row]:
        async with session.books(directory(data_dir)) as books:
            wanted = (await books.tenancy.tenant(tenant)).id if tenant else None
            names = {each.id: each.name for each in await books.tenancy.tenants()}
            return [_row(each, names[each.tenant_id]) for each in await books.webhooks.endpoints(wanted)]

    columns = (
        Column("id", "id"),
        Column("tenant", "tenant", style="bold"),
        Column("url", "url"),
        Column("kinds", "kinds"),
        Column("state", "state"),
        Column("failing_since", "failing since (UTC)"),
    )
    empty = "No webhooks: `kvitto webhook add TENANT URL`."
    print_rows(session.run(work()), columns, as_json=as_json, empty=empty)


@app.command("enable")
def enable(webhook_id: WebhookId, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Enable a webhook that was disabled. What it missed is delivered by `kvitto webhook replay`.

    Example: kvitto webhook enable whk_0123456789abcdef
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> "Endpoint":
        async with session.books(directory(data_dir)) as books:
            return await books.webhooks.change(webhook_id, {"enabled": True}, clock.now(), actor=ACTOR)

    row = _row(session.run(work()), None)
    if as_json:
        print_json(row)
    else:
        console().print(f"Webhook {row['id']} gets notices from now on.", markup=False)


@app.command("remove")
def remove(webhook_id: WebhookId, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Remove a webhook, its secrets, and the record of its deliveries.

    Example: kvitto webhook remove whk_0123456789abcdef
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> "Endpoint":
        async with session.books(directory(data_dir)) as books:
            return await books.webhooks.remove(webhook_id, clock.now(), actor=ACTOR)

    row = _row(session.run(work()), None)
    if as_json:
        print_json(row)
    else:
        console().print(f"Webhook {row['id']} is gone.", markup=False)


@app.command("rotate")
def rotate(
    webhook_id: WebhookId,
    grace: Annotated[str, typer.Option(metavar="AGE", help="How long secrets before go on signing.")] = "24h",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Give a webhook a new secret, shown this once. Those before sign beside it for the grace.

    Example: kvitto webhook rotate whk_0123456789abcdef --grace 7d
    """
    from admin import clock
    from admin.cli import session

    async def work() -> "IssuedEndpoint":
        async with session.books(directory(data_dir)) as books:
            return await books.webhooks.rotate(webhook_id, duration_of(grace), clock.now(), actor=ACTOR)

    _print_issued(session.run(work()), as_json)


@app.command("test")
def send_test(webhook_id: WebhookId, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Send a notice of kind `webhook.test`, and wait for what becomes of its first attempt.

    Example: kvitto webhook test whk_0123456789abcdef
    """
    import asyncio

    from admin import clock
    from admin.cli import session
    from admin.cli.errors import CommandFailed
    from admin.cli.output import print_json, print_pairs

    async def work() -> "Delivery":
        async with session.books(directory(data_dir)) as books:
            notice_id = await books.webhooks.test(webhook_id, clock.now())
            try:
                async with asyncio.timeout(TEST_WAIT_S):
                    while True:
                        for delivery in await books.webhooks.deliveries(webhook_id):
                            if delivery.notice_id == notice_id and delivery.attempts:
                                return delivery
                        await asyncio.sleep(TEST_POLL_S)
            except TimeoutError:
                raise CommandFailed(
                    f"nobody has sent notice {notice_id} yet: does `kvitto status` show the jobs?"
                ) from None

    row = _delivery_row(session.run(work()))
    if as_json:
        print_json(row)
    else:
        print_pairs([(name.replace("_", " "), value) for name, value in row.items()])
    if row["state"] != "delivered":
        raise typer.Exit(1)


@app.command("deliveries")
def deliveries(
    webhook_id: WebhookId,
    limit: Annotated[int, typer.Option(min=1, help="How many, the newest.")] = 20,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List what became of notices at a webhook, newest first. They come in no promised order.

    Example: kvitto webhook deliveries whk_0123456789abcdef
    """
    from admin.cli import session
    from admin.cli.output import Column, Row, print_rows
    from billing.db.pages import Page

    async def work() -> list[Row]:
        async with session.books(directory(data_dir)) as books:
            page = Page(None, limit)
            return [_delivery_row(each) for each in await books.webhooks.deliveries(webhook_id, page)]

    columns = (
        Column("notice", "notice"),
        Column("kind", "kind"),
        Column("at", "at (UTC)"),
        Column("state", "state", style="bold"),
        Column("attempts", "attempts", right=True),
        Column("status", "status", right=True),
        Column("error", "error"),
        Column("next_attempt", "next attempt (UTC)"),
    )
    print_rows(session.run(work()), columns, as_json=as_json, empty="It has been told nothing yet.")


@app.command("replay")
def replay(
    webhook_id: WebhookId,
    notice: Annotated[str | None, typer.Option(metavar="NOTICE_ID", help="This notice alone.")] = None,
    since: Annotated[str | None, typer.Option(metavar="INSTANT", help=INSTANT_HELP)] = None,
    until: Annotated[str, typer.Option(metavar="INSTANT", help="Before this instant.")] = "now",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Deliver notices once more, under their old ids: one, or all that the webhook wants of an interval.

    Example: kvitto webhook replay whk_0123456789abcdef --since 7d
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json
    from billing.interval import Interval

    now = clock.now()
    if (notice is None) == (since is None):
        raise typer.BadParameter("name a notice, or the beginning of an interval", param_hint="--since")
    what = notice or Interval(instant_of(since or "now", now), instant_of(until, now))

    async def work() -> int:
        async with session.books(directory(data_dir)) as books:
            return await books.webhooks.replay(webhook_id, what, now)

    count = session.run(work())
    if as_json:
        print_json({"deliveries": count})
    else:
        console().print(f"{count} notices are delivered once more.", markup=False)


def _kind(text: str) -> Kind:
    for kind in KINDS:
        if kind == text:
            return kind
    raise typer.BadParameter(f"{text!r} is none of {', '.join(KINDS)}", param_hint="--kind")


def _print_issued(issued: "IssuedEndpoint", as_json: bool) -> None:
    from admin.cli.output import console, print_json

    row = {**_row(issued.endpoint, None), "secret": issued.secret}
    if as_json:
        print_json(row)
    else:
        console().print(f"Webhook {row['id']} posts to {row['url']}.", markup=False)
        console().print(f"Its secret, shown this once: {issued.secret}", markup=False)


def _row(endpoint: "Endpoint", tenant: str | None) -> dict[str, object]:
    return {
        "id": endpoint.id,
        "tenant": tenant or endpoint.tenant_id,
        "url": endpoint.url,
        "kinds": "all" if endpoint.kinds is None else " ".join(sorted(endpoint.kinds)),
        "state": "enabled" if endpoint.enabled else f"disabled: {endpoint.disabled_for or 'by its tenant'}",
        "failing_since": endpoint.failing_since,
        "created_at": endpoint.created_at,
    }


def _delivery_row(delivery: "Delivery") -> dict[str, object]:
    last = delivery.attempts[-1] if delivery.attempts else None
    return {
        "notice": delivery.notice_id,
        "kind": delivery.kind,
        "at": delivery.at,
        "state": delivery.state,
        "attempts": len(delivery.attempts),
        "status": None if last is None else last.status,
        "error": None if last is None else last.error,
        "next_attempt": delivery.due_at if delivery.state == "pending" else None,
    }
