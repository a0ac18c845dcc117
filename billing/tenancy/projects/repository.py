"""Statements on projects."""

from datetime import datetime

from sqlalchemy import or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.pages import Page, paged
from billing.db.tables import api_key, project
from billing.tenancy.tenant import DEFAULT_PROJECT, Project


async def insert_project(connection: AsyncConnection, row: Project) -> bool:
    """False when the tenant has one of this name. Refused by fk_project_tenant_id without such a tenant."""
    statement = (
        insert(project)
        .values(id=row.id, tenant_id=row.tenant_id, name=row.name, created_at=row.created_at)
        .on_conflict_do_nothing(index_elements=["tenant_id", "name"])
        .returning(project.c.id)
    )
    return (await connection.execute(statement)).first() is not None


async def select_projects(connection: AsyncConnection, tenant_id: str | None, page: Page) -> list[Project]:
    """Of one tenant, or all; oldest first."""
    statement = paged(select(project), project, page)
    if tenant_id is not None:
        statement = statement.where(project.c.tenant_id == tenant_id)
    return [Project(**row) for row in (await connection.execute(statement)).mappings()]


async def select_project(
    connection: AsyncConnection, name_or_id: str, tenant_id: str | None, *, lock: bool = False
) -> Project | None:
    """By id; by name too where the tenant is named. An id wins over an equal name."""
    named = project.c.id == name_or_id
    if tenant_id is not None:
        named = or_(named, project.c.name == name_or_id) & (project.c.tenant_id == tenant_id)
    statement = select(project).where(named).order_by((project.c.id == name_or_id).desc()).limit(1)
    if lock:
        statement = statement.with_for_update()
    row = (await connection.execute(statement)).mappings().first()
    return None if row is None else Project(**row)


async def update_project(connection: AsyncConnection, row: Project) -> None:
    """Refused by uq_project_tenant_id_name when another one has the name."""
    await connection.execute(
        update(project).where(project.c.id == row.id).values(name=row.name, archived_at=row.archived_at)
    )


async def erase_projects(connection: AsyncConnection, tenant_id: str) -> int:
    """Give every project of a tenant but the default one its id for a name; returns how many."""
    statement = (
        update(project)
        .where(project.c.tenant_id == tenant_id, project.c.name != DEFAULT_PROJECT)
        .values(name=project.c.id)
        .returning(project.c.id)
    )
    return len((await connection.execute(statement)).all())


async def revoke_keys(connection: AsyncConnection, project_id: str, at: datetime) -> list[str]:
    """Revoke what is in use; returns ids."""
    statement = (
        update(api_key)
        .where(api_key.c.project_id == project_id, api_key.c.revoked_at.is_(None))
        .values(revoked_at=at)
        .returning(api_key.c.id)
    )
    return sorted((await connection.execute(statement)).scalars())
