"""Projects: make, list, rename, archive."""

import secrets
from dataclasses import replace
from datetime import datetime

from billing.audit import service as audit
from billing.audit.event import Deed, Facts, facts_of
from billing.db.access import reading, writing
from billing.db.pages import WHOLE, Page
from billing.db.transaction import Connection, Database
from billing.errors import ProjectExists, ProjectMissing, StoreRefused, TenancyInvalid, TenantMissing
from billing.tenancy.projects import repository
from billing.tenancy.tenant import DEFAULT_PROJECT, Project


class Projects:
    """Parts of tenants. Where ``tenant_id`` is given, projects of other tenants are not there."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, tenant_id: str, name: str, at: datetime, *, actor: str) -> Project:
        """Make a project.

        Raises:
            TenantMissing: no tenant has this id.
            ProjectExists: the tenant has one of this name.
            StoreRefused: no name.
        """
        made = Project(new_project_id(), tenant_id, name, at)
        try:
            async with self._database.transaction(writing(tenant_id)) as connection:
                if not await repository.insert_project(connection, made):
                    raise ProjectExists(name)
                deed = Deed(tenant_id, actor, "project.create", made.id, at, after=facts_of(made))
                await audit.append(connection, deed)
        except StoreRefused as refusal:
            if refusal.constraint == "fk_project_tenant_id":
                raise TenantMissing(tenant_id) from refusal
            raise
        return made

    async def projects(self, tenant_id: str | None = None, page: Page = WHOLE) -> list[Project]:
        """Projects of one tenant, or of all; archived ones too, oldest first."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await repository.select_projects(connection, tenant_id, page)

    async def project(self, name_or_id: str, tenant_id: str | None = None) -> Project:
        """One project, by its name only where the tenant is given.

        Raises:
            ProjectMissing: there is none.
        """
        async with self._database.transaction(reading(tenant_id)) as connection:
            found = await repository.select_project(connection, name_or_id, tenant_id)
        if found is None:
            raise ProjectMissing(name_or_id)
        return found

    async def rename(
        self, project_id: str, name: str, at: datetime, *, actor: str, tenant_id: str | None = None
    ) -> Project:
        """Give a project another name.

        Raises:
            ProjectMissing: there is none.
            ProjectExists: the tenant has one of this name.
            TenancyInvalid: it is the one where keys go by default.
        """
        try:
            async with self._database.transaction(writing(tenant_id)) as connection:
                before = await self._changeable(connection, project_id, tenant_id)
                after = replace(before, name=name)
                await repository.update_project(connection, after)
                await audit.append(connection, _deed("project.rename", actor, at, before, facts_of(after)))
        except StoreRefused as refusal:
            if refusal.constraint == "uq_project_tenant_id_name":
                raise ProjectExists(name) from refusal
            raise
        return after

    async def archive(
        self, project_id: str, at: datetime, *, actor: str, tenant_id: str | None = None
    ) -> Project:
        """Revoke the project's keys and take no new ones; again changes nothing. Its usage stays.

        Raises:
            ProjectMissing: there is none.
            TenancyInvalid: it is the one where keys go by default.
        """
        async with self._database.transaction(writing(tenant_id)) as connection:
            before = await self._changeable(connection, project_id, tenant_id)
            if before.archived_at is not None:
                return before
            after = replace(before, archived_at=at)
            await repository.update_project(connection, after)
            revoked = await repository.revoke_keys(connection, before.id, at)
            facts = {**facts_of(after), "keys_revoked": revoked}
            await audit.append(connection, _deed("project.archive", actor, at, before, facts))
        return after

    @staticmethod
    async def _changeable(connection: Connection, project_id: str, tenant_id: str | None) -> Project:
        found = await repository.select_project(connection, project_id, tenant_id, lock=True)
        if found is None:
            raise ProjectMissing(project_id)
        if found.name == DEFAULT_PROJECT:
            raise TenancyInvalid("project", f"`{DEFAULT_PROJECT}` stays: keys of nothing else are its")
        return found


def new_project_id() -> str:
    """Opaque and random."""
    return f"prj_{secrets.token_hex(12)}"


def _deed(action: str, actor: str, at: datetime, before: Project, after: Facts) -> Deed:
    return Deed(before.tenant_id, actor, action, before.id, at, facts_of(before), after)
