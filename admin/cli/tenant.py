"""`kvitto tenant`: who is billed."""

from typing import Annotated, Final

import typer

from admin.cli.options import DataDir, Json, directory

CURRENCY_LETTERS: Final = 3

app = typer.Typer(
    help="Create and list tenants: who is billed, each in one currency for good.", no_args_is_help=True
)


def _currency(code: str) -> str:
    if not (len(code) == CURRENCY_LETTERS and code.isascii() and code.isalpha()):
        raise typer.BadParameter(f"{code!r} is no currency: write its three letters, such as USD")
    return code.upper()


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="A name of your choice, unique in this deployment.")],
    currency: Annotated[
        str, typer.Option(metavar="CODE", help="ISO 4217; it cannot be changed later.", callback=_currency)
    ] = "USD",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Create a tenant. It has no credit and no key yet.

    Example: kvitto tenant create acme && kvitto credit grant acme 25 && kvitto key create acme
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            made = await books.tenancy.create_tenant(name, currency, at=clock.now())
        return {"id": made.id, "name": made.name, "currency": made.currency, "created_at": made.created_at}

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        console().print(f"Tenant {row['name']} is {row['id']}, billed in {row['currency']}.", markup=False)


@app.command("list")
def list_(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List tenants with their balances.

    Example: kvitto tenant list --json
    """
    from admin.cli import session
    from admin.cli.output import Column, Row, print_rows
    from billing.money import decimal_of

    async def work() -> list[Row]:
        async with session.books(directory(data_dir)) as books:
            rows: list[Row] = []
            for tenant in await books.tenancy.tenants():
                balance = await books.ledger.balance(tenant.id)
                rows.append(
                    {
                        "id": tenant.id,
                        "name": tenant.name,
                        "currency": tenant.currency,
                        "balance": decimal_of(balance.spendable),
                        "granted": decimal_of(balance.granted),
                        "topped_up": decimal_of(balance.topped_up),
                        "created_at": tenant.created_at,
                    }
                )
        return rows

    columns = (
        Column("name", "tenant", style="bold"),
        Column("id", "id"),
        Column("balance", "balance", right=True),
        Column("currency", ""),
        Column("created_at", "created (UTC)"),
    )
    empty = "No tenants yet: `kvitto tenant create NAME`."
    print_rows(session.run(work()), columns, as_json=as_json, empty=empty)
