"""`kvitto audit`: who changed what, whether the log is whole, and whether the books have what was served."""

from typing import TYPE_CHECKING, Annotated

import typer

from admin.cli.options import INSTANT_HELP, DataDir, Json, directory, instant_of

if TYPE_CHECKING:
    from billing.receipts.receipt import Receipt

app = typer.Typer(
    help="Read the audit log, prove that nobody has edited it, and compare the books with what was served.",
    no_args_is_help=True,
)

LINES_DEFAULT = 50


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only deeds on this tenant, by name or id.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show so many at most, the newest.")] = LINES_DEFAULT,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List what was changed, by whom, newest last. With --json also what it was before and is after.

    Example: kvitto audit list --tenant acme --json
    """
    from admin.cli import session
    from admin.cli.output import Column, Row, print_rows

    async def work() -> list[Row]:
        async with session.books(directory(data_dir)) as books:
            wanted = (await books.tenancy.tenant(tenant)).id if tenant else None
            names = {each.id: each.name for each in await books.tenancy.tenants()}
            return [
                {
                    "at": event.deed.at,
                    "tenant": names.get(event.deed.tenant_id, event.deed.tenant_id),
                    "tenant_id": event.deed.tenant_id,
                    "position": event.position,
                    "actor": event.deed.actor,
                    "action": event.deed.action,
                    "object": event.deed.object,
                    "before": event.deed.before,
                    "after": event.deed.after,
                    "hash": event.hash.hex(),
                }
                for event in await books.audit.events(wanted, events_max=limit)
            ]

    columns = (
        Column("at", "at (UTC)"),
        Column("tenant", "tenant", style="bold"),
        Column("position", "no.", right=True),
        Column("actor", "who"),
        Column("action", "did"),
        Column("object", "to"),
    )
    print_rows(session.run(work()), columns, as_json=as_json, empty="Nothing was changed yet.")


@app.command("verify")
def verify(
    tenant: Annotated[str | None, typer.Option(help="Only the chain of this tenant, by name or id.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Compute the hash chains again and name what was altered. Exit status 1 when anything was.

    Example: kvitto audit verify
    """
    from admin.cli import session

    async def work() -> list[str]:
        async with session.books(directory(data_dir)) as books:
            return await books.audit.verify((await books.tenancy.tenant(tenant)).id if tenant else None)

    _judge(session.run(work()), "The audit log is whole.", as_json=as_json)


@app.command("log")
def log(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Compute the receipt log again: each event sealed once, every hash, every signed head.

    Exit status 1 when anything differs. A million receipts take some minutes.

    Example: kvitto audit log
    """
    from admin.cli import session
    from engine.proof.ring import DeploymentRing

    async def work() -> list[str]:
        async with session.books(directory(data_dir)) as books:
            ring = DeploymentRing.read(books.settings.deployment_ring)
            return await books.receipt_log.check_integrity(ring)

    _judge(session.run(work()), "The receipt log is whole.", as_json=as_json)


@app.command("receipts")
def receipts(
    since: Annotated[
        str, typer.Option(metavar="INSTANT", help=f"Admitted at or after this: {INSTANT_HELP}.")
    ] = "24h",
    until: Annotated[
        str, typer.Option(metavar="INSTANT", help="Admitted before this; what runs is not in the books yet.")
    ] = "11m",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Compare what workers attest with what was billed, and name each request where they differ.

    Exit status 1 when there is one: a request that the books do not have, or whose receipt is contradicted.

    Example: kvitto audit receipts --since 7d
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import Column, print_rows
    from billing.request_id import instant_of as admitted_at

    now = clock.now()
    first, end = instant_of(since, now), instant_of(until, now)

    async def work() -> "list[Receipt]":
        async with session.books(directory(data_dir)) as books:
            billed = await books.receipts.admitted_between(first, end)
            return [r for r in billed if r.finding] + await books.receipts.unbilled_between(first, end)

    found = session.run(work())
    columns = (
        Column("request_id", "request"),
        Column("admitted_at", "admitted (UTC)"),
        Column("workers", "attested by"),
        Column("finding", "finding"),
    )
    rows = [
        {
            "request_id": receipt.request_id,
            "admitted_at": admitted_at(receipt.request_id),
            "workers": ", ".join(receipt.workers),
            "finding": receipt.finding or "the books do not have it",
        }
        for receipt in found
    ]
    print_rows(rows, columns, as_json=as_json, empty="The books have all that workers attest, as they do.")
    if found:
        raise typer.Exit(1)


def _judge(faults: list[str], whole: str, *, as_json: bool) -> None:
    """Print what was found; exit status 1 when anything was."""
    from admin.cli.output import console, print_json

    if as_json:
        print_json({"whole": not faults, "faults": faults})
    elif not faults:
        console().print(whole, style="green")
    else:
        for fault in faults:
            console().print(fault, style="red", markup=False)
    if faults:
        raise typer.Exit(1)
