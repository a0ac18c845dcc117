"""`kvitto project`: parts of a tenant that keys belong to."""

from typing import TYPE_CHECKING, Annotated

import typer

from admin.cli.options import ACTOR, DataDir, Json, directory

if TYPE_CHECKING:
    from billing.tenancy.tenant import Project

app = typer.Typer(
    help="Create, list, rename and archive projects: parts of a tenant, each with keys, limits and budgets.",
    no_args_is_help=True,
)

ProjectId = Annotated[
    str, typer.Argument(metavar="PROJECT_ID", help="Id of the project, from `kvitto project list`.")
]


@app.command("create")
def create(
    tenant: Annotated[str, typer.Argument(help="Name or id of the tenant.")],
    name: Annotated[str, typer.Argument(help="A name of your choice, unique in the tenant.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Create a project. Every tenant has one from the start: `default`, where keys go unless told otherwise.

    Example: kvitto project create acme search && kvitto key create acme --project search
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            made = await books.projects.create(owner.id, name, clock.now(), actor=ACTOR)
        return _row(made, owner.name)

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        console().print(f"Project {row['name']} of {row['tenant']} is {row['id']}.", markup=False)


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only projects of this tenant, by name or id.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List projects, archived ones too.

    Example: kvitto project list --tenant acme
    """
    from admin.cli import session
    from admin.cli.output import Column, Row, print_rows

    async def work() -> list[Row]:
        async with session.books(directory(data_dir)) as books:
            wanted = (await books.tenancy.tenant(tenant)).id if tenant else None
            names = {each.id: each.name for each in await books.tenancy.tenants()}
            return [_row(each, names[each.tenant_id]) for each in await books.projects.projects(wanted)]

    columns = (
        Column("id", "id"),
        Column("tenant", "tenant", style="bold"),
        Column("name", "name"),
        Column("created_at", "created (UTC)"),
        Column("archived_at", "archived (UTC)"),
    )
    print_rows(session.run(work()), columns, as_json=as_json, empty="No projects.")


@app.command("rename")
def rename(
    project_id: ProjectId,
    name: Annotated[str, typer.Argument(help="The new name, unique in the tenant.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Give a project another name. Its id, keys and usage stay.

    Example: kvitto project rename prj_0123456789abcdef01234567 search-eu
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            changed = await books.projects.rename(project_id, name, clock.now(), actor=ACTOR)
            return _row(changed, (await books.tenancy.tenant(changed.tenant_id)).name)

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        console().print(f"Project {row['id']} of {row['tenant']} is now {row['name']}.", markup=False)


@app.command("archive")
def archive(project_id: ProjectId, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Archive a project: its keys are revoked for good and it takes no new ones. Its usage stays.

    Example: kvitto project archive prj_0123456789abcdef01234567
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            changed = await books.projects.archive(project_id, clock.now(), actor=ACTOR)
            await session.tell_gateways(books.settings, changed.id)
            return _row(changed, (await books.tenancy.tenant(changed.tenant_id)).name)

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        console().print(f"Project {row['name']} of {row['tenant']} is archived.", markup=False)


def _row(project: "Project", tenant_name: str) -> dict[str, object]:
    return {
        "id": project.id,
        "tenant": tenant_name,
        "tenant_id": project.tenant_id,
        "name": project.name,
        "created_at": project.created_at,
        "archived_at": project.archived_at,
    }
