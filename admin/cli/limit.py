"""`kvitto limit`: how much of something may be used at a time."""

from typing import TYPE_CHECKING, Annotated

import typer

from admin.cli.options import ACTOR, DataDir, Json, directory
from admin.cli.owner import OfKey, OfProject, OfTenant, owner_of
from billing.tenancy.limits import AMOUNT_MAX, Measure

if TYPE_CHECKING:
    from billing.tenancy.rules.rule import KeptLimit

app = typer.Typer(
    help="Limit requests, tokens and concurrency of a tenant, a project or a key.",
    no_args_is_help=True,
)


@app.command("set")
def set_(  # noqa: PLR0913, PLR0917 -- each parameter is an option a person types
    measure: Annotated[Measure, typer.Argument(help="What is counted.")],
    amount: Annotated[int, typer.Argument(min=0, max=AMOUNT_MAX, help="How much; 0 allows none.")],
    tenant: OfTenant = None,
    project: OfProject = None,
    key: OfKey = None,
    model: Annotated[str | None, typer.Option(help="Requests of this public model alone.")] = None,
    per_user: Annotated[bool, typer.Option("--per-user", help="Each `user_id` has this much.")] = False,
    cached_free: Annotated[
        bool, typer.Option("--cached-free", help="Input tokens served from cache are given back.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Put a limit in force, in place of one of the same owner, measure, model and --per-user.

    A request passes all limits that cover it, or none of them counts it.

    Example: kvitto limit set requests_per_minute 60 --tenant acme
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json
    from billing.tenancy.limits import Limit

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            owner = await owner_of(books, tenant, project, key)
            limit = Limit(owner.level, owner.id, measure, amount, model, per_user, cached_free)
            kept = await books.rules.set_limit(owner, limit, clock.now(), actor=ACTOR)
            await session.tell_gateways(books.settings, owner.id)
            return _row(kept, (await books.tenancy.tenant(owner.tenant_id)).name)

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        text = "{level} {owner_id}: {amount:,} {measure}, limit {id}."
        console().print(text.format(**row), markup=False)


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only limits of this tenant, by name or id.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List limits of tenants, their projects and their keys.

    Example: kvitto limit list --tenant acme
    """
    from admin.cli import session
    from admin.cli.output import Column, Row, print_rows

    async def work() -> list[Row]:
        async with session.books(directory(data_dir)) as books:
            wanted = (await books.tenancy.tenant(tenant)).id if tenant else None
            names = {each.id: each.name for each in await books.tenancy.tenants()}
            return [_row(kept, names[kept.owner.tenant_id]) for kept in await books.rules.limits(wanted)]

    columns = (
        Column("id", "id"),
        Column("tenant", "tenant", style="bold"),
        Column("owner_id", "of"),
        Column("measure", "measure"),
        Column("amount", "amount", right=True),
        Column("model", "model"),
        Column("per_user", "each user"),
        Column("cached_free", "cached free"),
    )
    empty = "No limits: everything is allowed. `kvitto limit set MEASURE AMOUNT --tenant TENANT`."
    print_rows(session.run(work()), columns, as_json=as_json, empty=empty)


@app.command("remove")
def remove(
    limit_id: Annotated[str, typer.Argument(metavar="LIMIT_ID", help="Id of it, from `kvitto limit list`.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Take a limit out of force: what it counted is unlimited again.

    Example: kvitto limit remove lim_0123456789abcdef
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            gone = await books.rules.remove_limit(limit_id, clock.now(), actor=ACTOR)
            await session.tell_gateways(books.settings, gone.owner.id)
            return _row(gone, (await books.tenancy.tenant(gone.owner.tenant_id)).name)

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        console().print(f"Limit {row['id']} of {row['owner_id']} is removed.", markup=False)


def _row(kept: "KeptLimit", tenant_name: str) -> dict[str, object]:
    limit = kept.limit
    return {
        "id": kept.id,
        "tenant": tenant_name,
        "tenant_id": kept.owner.tenant_id,
        "level": limit.level,
        "owner_id": limit.owner_id,
        "measure": limit.measure,
        "amount": limit.amount,
        "model": limit.model,
        "per_user": limit.per_user,
        "cached_free": limit.cached_free,
        "created_at": kept.created_at,
    }
