"""`kvitto user`: people of a tenant and their roles."""

from typing import TYPE_CHECKING, Annotated

import typer

from admin.cli.options import ACTOR, DataDir, Json, directory
from billing.tenancy.users.user import Role

if TYPE_CHECKING:
    from billing.tenancy.users.user import User

app = typer.Typer(
    help="Add, list and remove users of a tenant, and say what each may do.", no_args_is_help=True
)

ROLE_HELP = (
    "owner: everything; admin: everything but owners; finance: money and usage; "
    "developer: keys and usage; viewer: looks."
)
UserId = Annotated[str, typer.Argument(metavar="USER_ID", help="Id of the user, from `kvitto user list`.")]


@app.command("create")
def create(
    tenant: Annotated[str, typer.Argument(help="Name or id of the tenant.")],
    email: Annotated[str, typer.Argument(help="E-mail address, unique in the tenant.")],
    role: Annotated[Role, typer.Option(help=ROLE_HELP)] = "viewer",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Add a user to a tenant. One address may be a user of several tenants, with a role in each.

    Example: kvitto user create acme ada@example.com --role owner
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            made = await books.users.create(owner.id, email, role, clock.now(), actor=ACTOR)
        return _row(made, owner.name)

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        text = f"{row['email']} is {row['role']} of {row['tenant']}: user {row['id']}."
        console().print(text, markup=False)


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only users of this tenant, by name or id.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List users with their roles.

    Example: kvitto user list --tenant acme
    """
    from admin.cli import session
    from admin.cli.output import Column, Row, print_rows

    async def work() -> list[Row]:
        async with session.books(directory(data_dir)) as books:
            wanted = (await books.tenancy.tenant(tenant)).id if tenant else None
            names = {each.id: each.name for each in await books.tenancy.tenants()}
            return [_row(user, names[user.tenant_id]) for user in await books.users.users(wanted)]

    columns = (
        Column("id", "id"),
        Column("tenant", "tenant", style="bold"),
        Column("email", "e-mail"),
        Column("role", "role"),
        Column("created_at", "created (UTC)"),
    )
    empty = "No users: `kvitto user create TENANT EMAIL`."
    print_rows(session.run(work()), columns, as_json=as_json, empty=empty)


@app.command("set")
def set_(
    user_id: UserId,
    role: Annotated[Role, typer.Option(help=ROLE_HELP)],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Give a user another role.

    Example: kvitto user set usr_0123456789abcdef --role finance
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            changed = await books.users.change_role(user_id, role, clock.now(), actor=ACTOR)
            return _row(changed, (await books.tenancy.tenant(changed.tenant_id)).name)

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        console().print(f"{row['email']} is now {row['role']} of {row['tenant']}.", markup=False)


@app.command("remove")
def remove(user_id: UserId, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Remove a user from a tenant. What they did stays in the audit log.

    Example: kvitto user remove usr_0123456789abcdef
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            removed = await books.users.remove(user_id, clock.now(), actor=ACTOR)
            return _row(removed, (await books.tenancy.tenant(removed.tenant_id)).name)

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        console().print(f"{row['email']} is no user of {row['tenant']} any more.", markup=False)


def _row(user: "User", tenant_name: str) -> dict[str, object]:
    return {
        "id": user.id,
        "tenant": tenant_name,
        "tenant_id": user.tenant_id,
        "email": user.email,
        "role": user.role,
        "created_at": user.created_at,
    }
