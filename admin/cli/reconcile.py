"""`kvitto reconcile`: whether all books say the same, and which rows do not."""

from typing import Annotated

import typer

from admin.cli.options import INSTANT_HELP, DataDir, Json, directory, instant_of


def reconcile(
    since: Annotated[
        str | None, typer.Option(metavar="INSTANT", help=f"Recorded at or after this: {INSTANT_HELP}.")
    ] = None,
    until: Annotated[
        str, typer.Option(metavar="INSTANT", help="Recorded before this; what runs is not in the books yet.")
    ] = "11m",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Compare events, ledger, receipts, invoices and Stripe, and name each id that is missing or differs.

    Nothing is changed. Exit status 1 when anything differs; where a repair is plain, its command is proposed.
    Without --since, all that was ever recorded.

    Example: kvitto reconcile --since 7d
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import Column, console, print_rows
    from billing.reconcile.finding import Finding
    from billing.reconcile.service import EVER

    now = clock.now()
    first, end = EVER if since is None else instant_of(since, now), instant_of(until, now)
    progress = console(stderr=True)

    def begins(check: str) -> None:
        progress.print(f"{check} …", style="dim")

    async def work() -> list[Finding]:
        async with session.books(directory(data_dir)) as books:
            return [each async for each in books.reconciliation.run(first, end, begins)]

    found = session.run(work())
    columns = (
        Column("check", "books"),
        Column("object_id", "what", style="bold"),
        Column("differs", "differs"),
        Column("repair", "proposed"),
    )
    rows = [
        {"check": each.check, "object_id": each.object_id, "differs": each.differs, "repair": each.repair}
        for each in found
    ]
    print_rows(rows, columns, as_json=as_json, empty="All books agree.")
    if found:
        raise typer.Exit(1)
