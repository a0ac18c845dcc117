"""`kvitto admission`: what gateways may still admit, as Valkey has it."""

from typing import Annotated

import typer

from admin.cli.options import DataDir, Json, directory

app = typer.Typer(help="Look after what gateways admit by.", no_args_is_help=True)


@app.command("rebuild")
def rebuild(
    tenant: Annotated[
        str | None, typer.Argument(help="Name or id of the tenant.", show_default="all of them")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Restore Valkey's numbers from the books: balances, what budgets have spent, tokens of the day.

    Balances are shown at once; budgets and days are read by the next admission that needs them. Requests in
    flight keep their holds. Limits of a minute are not in the books: they stay as they are.

    Example: kvitto admission rebuild
    """
    from admin.cli import session
    from admin.cli.output import Column, Row, print_rows
    from billing.money import decimal_of
    from gateway.admission.admit import Admission
    from gateway.admission.rebuild import Projections

    async def work() -> list[Row]:
        async with session.books(directory(data_dir)) as books, session.valkey(books.settings) as valkey:
            projections = Projections(Admission(valkey), books.ledger, books.reports)
            owners = await books.tenancy.tenants() if tenant is None else [await books.tenancy.tenant(tenant)]
            rebuilt: list[Row] = []
            for owner in owners:
                version, forgotten = await projections.rebuild(owner.id)
                rebuilt.append(
                    {
                        "tenant": owner.name,
                        "tenant_id": owner.id,
                        "balance": decimal_of(version.balance),
                        "currency": owner.currency,
                        "version": version.version,
                        "read_again": forgotten,
                    }
                )
            return rebuilt

    columns = [
        Column("tenant", "tenant"),
        Column("balance", "balance", right=True),
        Column("currency", ""),
        Column("read_again", "budgets and days to read again", right=True),
    ]
    print_rows(session.run(work()), columns, as_json=as_json, empty="There is no tenant yet.")
