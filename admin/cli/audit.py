"""`kvitto audit`: who changed what, and whether the log is whole."""

from typing import Annotated

import typer

from admin.cli.options import DataDir, Json, directory

app = typer.Typer(help="Read the audit log, and prove that nobody has edited it.", no_args_is_help=True)

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
    from admin.cli.output import console, print_json

    async def work() -> list[str]:
        async with session.books(directory(data_dir)) as books:
            return await books.audit.verify((await books.tenancy.tenant(tenant)).id if tenant else None)

    faults = session.run(work())
    if as_json:
        print_json({"whole": not faults, "faults": faults})
    elif not faults:
        console().print("The audit log is whole.", style="green")
    else:
        for fault in faults:
            console().print(fault, style="red", markup=False)
    if faults:
        raise typer.Exit(1)
