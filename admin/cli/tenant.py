"""`kvitto tenant`: who is billed."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from admin.cli.options import ACTOR, DataDir, Json, directory
from billing.tenancy.tenant import BillingMode

if TYPE_CHECKING:
    from billing.tenancy.tenant import Tenant

CURRENCY_LETTERS: Final = 3

app = typer.Typer(
    help="Create, list and change tenants: who is billed, each in one currency for good.",
    no_args_is_help=True,
)

Mode = Annotated[
    BillingMode,
    typer.Option(help="Postpaid: it may owe what `kvitto credit terms` allows."),
]
Zone = Annotated[str, typer.Option(metavar="ZONE", help="Where its days begin, such as Europe/Stockholm.")]
TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="Name or id of the tenant.")]


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
    billing_mode: Mode = "prepaid",
    time_zone: Zone = "UTC",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Create a tenant with its project `default`. It has no credit and no key yet.

    Example: kvitto tenant create acme && kvitto credit grant acme 25 && kvitto key create acme
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            made = await books.tenancy.create_tenant(
                name,
                currency,
                at=clock.now(),
                billing_mode=billing_mode,
                tz=time_zone,
                actor=ACTOR,
            )
        return _row(made)

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
                        **_row(tenant),
                        "balance": decimal_of(balance.spendable),
                        "granted": decimal_of(balance.granted),
                        "topped_up": decimal_of(balance.topped_up),
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


@app.command("show")
def show(tenant: TenantName, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show how a tenant is billed, and how much it has: projects, keys, users, limits, budgets.

    Example: kvitto tenant show acme
    """
    from admin.cli import session
    from admin.cli.output import print_json, print_pairs

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            found = await books.tenancy.tenant(tenant)
            keys = await books.tenancy.keys(found.id)
            return {
                **_row(found),
                "projects": len(await books.projects.projects(found.id)),
                "keys_in_use": sum(key.revoked_at is None for key in keys),
                "users": len(await books.users.users(found.id)),
                "limits": len(await books.rules.limits(found.id)),
                "budgets": len(await books.rules.budgets(found.id)),
            }

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        print_pairs([(name.replace("_", " "), value) for name, value in row.items()])


@app.command("set")
def set_(
    tenant: TenantName,
    time_zone: Zone,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Change where the days of a tenant's budgets begin. How it pays is changed by `kvitto credit terms`.

    Example: kvitto tenant set acme --time-zone Asia/Kolkata
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import print_json, print_pairs

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            found = await books.tenancy.tenant(tenant)
            changed = await books.tenancy.change_tenant(found.id, clock.now(), tz=time_zone, actor=ACTOR)
            await session.tell_gateways(books.settings, changed.id)
        return _row(changed)

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        print_pairs([(name.replace("_", " "), value) for name, value in row.items()])


def _row(tenant: "Tenant") -> dict[str, object]:
    return {
        "id": tenant.id,
        "name": tenant.name,
        "currency": tenant.currency,
        "billing_mode": tenant.billing_mode,
        "time_zone": tenant.tz,
        "created_at": tenant.created_at,
    }
