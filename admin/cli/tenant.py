"""`kvitto tenant`: who is billed."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from admin.cli.options import ACTOR, DataDir, Json, directory
from billing.tenancy.tenant import BillingMode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from admin.cli.session import Books
    from admin.erase import Gone
    from billing.tenancy.tenant import Tenant

CURRENCY_LETTERS: Final = 3

_WHAT_STAYS: Final = """\
Gone for good: the name, users, keys and their names, webhooks, notices, stored prefixes, kept answers,
and what the audit log says of before and after.
Stays, under {id}, which names nobody: usage, ledger (it has {credit} left: refund that first), attestations,
the log of receipts, who did what when in the audit log, and documents that the law wants kept.
Backups are yours to let expire."""

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
        Column("suspended_by", "suspended by"),
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


@app.command("suspend")
def suspend(
    tenant: TenantName,
    reason: Annotated[str, typer.Option(help="Why, for the books; a key is not told.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Refuse inference to a tenant until it is resumed. It can still read usage, invoices and receipts.

    Example: kvitto tenant suspend acme --reason 'leaked keys'
    """
    from admin import clock

    _stand(
        tenant,
        lambda books, tenant_id: books.lifecycle.suspend(tenant_id, reason, clock.now(), actor=ACTOR),
        "{name} is refused inference from now on; its requests in flight end, and are billed.",
        data_dir,
        as_json=as_json,
    )


@app.command("resume")
def resume(
    tenant: TenantName,
    reason: Annotated[str, typer.Option(help="Why, for the books.")] = "resumed on the command line",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Admit a suspended tenant again, whatever it was suspended for. Payment resumes whom dunning suspended.

    Example: kvitto tenant resume acme --reason 'keys are rotated'
    """
    from admin import clock

    _stand(
        tenant,
        lambda books, tenant_id: books.lifecycle.resume(tenant_id, reason, clock.now(), actor=ACTOR),
        "{name} is admitted.",
        data_dir,
        as_json=as_json,
    )


@app.command("erase")
def erase(
    tenant: TenantName,
    confirm: Annotated[
        str | None, typer.Option(metavar="NAME", help="Its name once more, in place of being asked for it.")
    ] = None,
    wait: Annotated[int, typer.Option(metavar="SECONDS", min=0, help="For requests in flight.")] = 60,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Forget a tenant for good: names, users, keys, webhooks, stored prefixes. Money and proofs stay.

    Example: kvitto tenant erase acme
    """
    from admin.cli import session
    from admin.cli.errors import CommandFailed
    from admin.cli.output import console, print_json, print_pairs
    from admin.erase import House
    from admin.erase import erase as erase_everywhere
    from billing.money import decimal_of
    from gateway.kept import Kept
    from gateway.options import GatewayOptions
    from gateway.vault import Vault

    async def work() -> "Gone":
        async with session.books(directory(data_dir)) as books:
            found = await books.tenancy.tenant(tenant)
            balance = await books.ledger.balance(found.id)
            credit = f"{decimal_of(balance.total)} {balance.currency}"
            if not as_json:
                console(stderr=True).print(_WHAT_STAYS.format(id=found.id, credit=credit), markup=False)
            if confirm is None and as_json:
                raise CommandFailed("this cannot be undone and machines are not asked: add --confirm NAME")
            named = confirm or typer.prompt(f"The name of the tenant, to erase {found.id} for good", err=True)
            if named != found.name:
                raise CommandFailed(f"{named!r} is not the name of {found.id}: nothing was erased")
            async with session.valkey(books.settings) as valkey:
                vault = Vault(books.settings.key_pepper)
                kept = Kept(valkey, vault, lease_s=GatewayOptions().lease_s)
                house = House(books.lifecycle, valkey, kept, books.settings.store_dir)
                return await erase_everywhere(house, found.id, actor=ACTOR, wait_s=wait)

    gone = session.run(work())
    if as_json:
        print_json({"id": gone.tenant_id, **gone.dropped})
    else:
        print_pairs([(name.replace("_", " "), count) for name, count in gone.dropped.items()])
        console().print(f"{gone.tenant_id} names nobody any more.", markup=False)


def _stand(
    tenant: str,
    change: "Callable[[Books, str], Awaitable[Tenant]]",
    said: str,
    data_dir: "Path | None",
    *,
    as_json: bool,
) -> None:
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            changed = await change(books, (await books.tenancy.tenant(tenant)).id)
            await session.tell_gateways(books.settings, changed.id)
        return _row(changed)

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        console().print(said.format(name=row["name"]), markup=False)


def _row(tenant: "Tenant") -> dict[str, object]:
    suspension = tenant.suspension
    return {
        "id": tenant.id,
        "name": tenant.name,
        "currency": tenant.currency,
        "billing_mode": tenant.billing_mode,
        "time_zone": tenant.tz,
        "created_at": tenant.created_at,
        "suspended_at": None if suspension is None else suspension.at,
        "suspended_by": None if suspension is None else suspension.by,
        "suspended_because": None if suspension is None else suspension.because,
        "erased_at": tenant.erased_at,
    }
