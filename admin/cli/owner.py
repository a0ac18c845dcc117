"""Whose limit or budget a command means: a tenant's, a project's or a key's."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from admin.cli.session import Books
    from billing.tenancy.rules.rule import Owner

OfTenant = Annotated[
    str | None,
    typer.Option("--tenant", help="All requests of this tenant, by name or id.", show_default=False),
]
OfProject = Annotated[
    str | None,
    typer.Option(
        "--project",
        help="Those of this project alone, by id; by name too with --tenant.",
        show_default=False,
    ),
]
OfKey = Annotated[
    str | None, typer.Option("--key", help="Those of this key alone, by id.", show_default=False)
]


async def owner_of(books: "Books", tenant: str | None, project: str | None, key: str | None) -> "Owner":
    """The owner that the three options name.

    Raises:
        typer.BadParameter: none is named, or both a project and a key.
        TenantMissing, ProjectMissing, KeyMissing: there is none.
    """
    from billing.tenancy.rules.rule import Owner

    if project is not None and key is not None:
        raise typer.BadParameter("a key has one project: name one of the two", param_hint="--key")
    if tenant is None and project is None and key is None:
        raise typer.BadParameter("name a tenant, a project or a key", param_hint="--tenant")
    tenant_id = None if tenant is None else (await books.tenancy.tenant(tenant)).id
    if key is not None:
        found = await books.tenancy.key(key, tenant_id)
        return Owner(found.tenant_id, key_id=found.id)
    if project is not None:
        home = await books.projects.project(project, tenant_id)
        return Owner(home.tenant_id, project_id=home.id)
    assert tenant_id is not None
    return Owner(tenant_id)
