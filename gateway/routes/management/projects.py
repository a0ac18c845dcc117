"""Projects of the key's organisation."""

from datetime import datetime
from typing import Final, Literal

import msgspec
from litestar import delete, get, patch, post
from litestar.params import FromPath, JSONBody

from billing.tenancy.tenant import Project
from gateway.desk import AnyRequest
from gateway.routes.management import edge
from gateway.routes.management.edge import After, Listed, Name, RowsMax


class ProjectShown(msgspec.Struct):
    """A part of the organisation. ``status`` is archived when its keys are revoked and it takes no more."""

    id: str
    name: str
    created_at: datetime
    archived_at: datetime | None
    status: Literal["active", "archived"]
    object: Literal["organization.project"] = "organization.project"


class ProjectNamed(msgspec.Struct, forbid_unknown_fields=True):
    """A name, unique in the organisation."""

    name: Name


@get("/projects")
async def list_projects(
    request: AnyRequest, after: After = None, limit: RowsMax = edge.ROWS_DEFAULT
) -> Listed[ProjectShown]:
    """List projects, archived ones too."""
    page = edge.one_more(after, limit)
    rows = await edge.organization(request).projects.projects(edge.manager(request).tenant_id, page)
    return edge.listed(rows, limit, _shown)


@post("/projects")
async def create_project(request: AnyRequest, data: JSONBody[ProjectNamed]) -> ProjectShown:
    """Create a project."""
    by = edge.manager(request)
    at = await edge.now(request)
    return _shown(
        await edge.organization(request).projects.create(by.tenant_id, data.name, at, actor=by.key_id)
    )


@get("/projects/{project_id:str}")
async def show_project(request: AnyRequest, project_id: FromPath[str]) -> ProjectShown:
    """Show a project, by id or name."""
    projects = edge.organization(request).projects
    return _shown(await projects.project(project_id, edge.manager(request).tenant_id))


@patch("/projects/{project_id:str}")
async def rename_project(
    request: AnyRequest, project_id: FromPath[str], data: JSONBody[ProjectNamed]
) -> ProjectShown:
    """Give a project another name. `default` keeps its own."""
    by = edge.manager(request)
    at = await edge.now(request)
    changed = await edge.organization(request).projects.rename(
        project_id, data.name, at, actor=by.key_id, tenant_id=by.tenant_id
    )
    return _shown(changed)


@delete("/projects/{project_id:str}", status_code=200)
async def archive_project(request: AnyRequest, project_id: FromPath[str]) -> ProjectShown:
    """Archive a project: its keys are revoked and it takes no new ones. `default` stays."""
    by = edge.manager(request)
    at = await edge.now(request)
    archived = await edge.organization(request).projects.archive(
        project_id, at, actor=by.key_id, tenant_id=by.tenant_id
    )
    await edge.tell(request, archived.id)
    return _shown(archived)


def _shown(project: Project) -> ProjectShown:
    return ProjectShown(
        id=project.id,
        name=project.name,
        created_at=project.created_at,
        archived_at=project.archived_at,
        status="active" if project.archived_at is None else "archived",
    )


HANDLERS: Final = [list_projects, create_project, show_project, rename_project, archive_project]
