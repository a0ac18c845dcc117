"""`kvitto key`: the secrets that tenants call the API with."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from admin.cli.options import DataDir, Json, directory

if TYPE_CHECKING:
    from admin.cli.output import Row
    from billing.tenancy.api_key import ApiKey

app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)

NAME_DEFAULT = "default"


@app.command("create")
def create(
    tenant: Annotated[str, typer.Argument(help="Name or id of the tenant.")],
    name: Annotated[str, typer.Option(help="What the key is for; shown in lists and usage.")] = NAME_DEFAULT,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Create an API key. Its secret is shown now and never again: only a keyed hash of it is stored.

    Example: kvitto key create acme --name production
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json, print_pairs

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            issued = await books.tenancy.create_key(owner.id, name, clock.now())
        return {**_row(issued.key, owner.name), "secret": issued.secret}

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        print_pairs([("key", row["id"]), ("tenant", row["tenant"]), ("secret", row["secret"])])
        console().print("Keep the secret now: it cannot be shown again.", style="yellow")


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant, by name or id.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List API keys, revoked ones too; never their secrets.

    Example: kvitto key list --tenant acme
    """
    from admin.cli import session
    from admin.cli.output import Column, Row, print_rows

    async def work() -> list[Row]:
        async with session.books(directory(data_dir)) as books:
            wanted = (await books.tenancy.tenant(tenant)).id if tenant else None
            names = {each.id: each.name for each in await books.tenancy.tenants()}
            keys = await books.tenancy.keys(wanted)
        return [_row(key, names[key.tenant_id]) for key in keys]

    columns = (
        Column("id", "id"),
        Column("tenant", "tenant", style="bold"),
        Column("name", "name"),
        Column("prefix", "secret begins"),
        Column("created_at", "created (UTC)"),
        Column("revoked_at", "revoked (UTC)"),
    )
    empty = "No keys: `kvitto key create TENANT`."
    print_rows(session.run(work()), columns, as_json=as_json, empty=empty)


@app.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="Id of the key, from `kvitto key list`.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Revoke an API key for good. Every gateway refuses it within two seconds.

    Example: kvitto key revoke key_0123456789abcdef
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json
    from gateway.refusal import ValkeyUnavailable
    from gateway.snapshot import announce_change

    async def work() -> "Row":
        async with session.books(directory(data_dir)) as books:
            key = await books.tenancy.revoke_key(key_id, clock.now())
            names = {each.id: each.name for each in await books.tenancy.tenants()}
            async with session.valkey(books.settings) as valkey:
                # Untold gateways ask again within two seconds: the revocation holds without Valkey.
                with suppress(ValkeyUnavailable):
                    await announce_change(valkey, key.id)
        return _row(key, names[key.tenant_id])

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        console().print(f"Key {row['id']} of {row['tenant']} is revoked.", markup=False)


def _row(key: "ApiKey", tenant_name: str) -> dict[str, object]:
    return {
        "id": key.id,
        "tenant": tenant_name,
        "tenant_id": key.tenant_id,
        "name": key.name,
        "prefix": key.prefix,
        "created_at": key.created_at,
        "revoked_at": key.revoked_at,
    }
