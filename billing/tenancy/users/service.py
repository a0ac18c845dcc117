"""Users: invite, list, give another role, remove."""

import secrets
from dataclasses import replace
from datetime import datetime

from billing.audit import service as audit
from billing.audit.event import Deed, facts_of
from billing.db.access import reading, writing
from billing.db.pages import WHOLE, Page
from billing.db.transaction import Connection, Database
from billing.errors import StoreRefused, TenantMissing, UserExists, UserMissing
from billing.tenancy.users import repository
from billing.tenancy.users.user import Role, User


class Users:
    """People of tenants. Where ``tenant_id`` is given, users of other tenants are not there."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, tenant_id: str, email: str, role: Role, at: datetime, *, actor: str) -> User:
        """Add a user; the address is kept in lower case.

        Raises:
            TenantMissing: no tenant has this id.
            UserExists: the tenant has one of this address.
            TenancyInvalid: no e-mail address.
        """
        made = User(f"usr_{secrets.token_hex(8)}", tenant_id, email.strip().lower(), role, at)
        try:
            async with self._database.transaction(writing(tenant_id)) as connection:
                if not await repository.insert_user(connection, made):
                    raise UserExists(made.email)
                await audit.append(
                    connection, Deed(tenant_id, actor, "user.create", made.id, at, after=facts_of(made))
                )
        except StoreRefused as refusal:
            if refusal.constraint == "fk_tenant_user_tenant_id":
                raise TenantMissing(tenant_id) from refusal
            raise
        return made

    async def users(self, tenant_id: str | None = None, page: Page = WHOLE) -> list[User]:
        """Users of one tenant, or of all, oldest first."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await repository.select_users(connection, tenant_id, page)

    async def user(self, user_id: str, tenant_id: str | None = None) -> User:
        """One user; raises UserMissing."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await self._found(connection, user_id, tenant_id)

    async def change_role(
        self, user_id: str, role: Role, at: datetime, *, actor: str, tenant_id: str | None = None
    ) -> User:
        """Give a user another role; raises UserMissing."""
        async with self._database.transaction(writing(tenant_id)) as connection:
            before = await self._found(connection, user_id, tenant_id, lock=True)
            after = replace(before, role=role)
            await repository.update_role(connection, user_id, role)
            deed = Deed(before.tenant_id, actor, "user.role", user_id, at, facts_of(before), facts_of(after))
            await audit.append(connection, deed)
        return after

    async def remove(self, user_id: str, at: datetime, *, actor: str, tenant_id: str | None = None) -> User:
        """Remove a user; raises UserMissing. What they did stays in the audit log."""
        async with self._database.transaction(writing(tenant_id)) as connection:
            before = await self._found(connection, user_id, tenant_id, lock=True)
            await repository.delete_user(connection, user_id)
            await audit.append(
                connection, Deed(before.tenant_id, actor, "user.remove", user_id, at, facts_of(before))
            )
        return before

    @staticmethod
    async def _found(
        connection: Connection, user_id: str, tenant_id: str | None, *, lock: bool = False
    ) -> User:
        found = await repository.select_user(connection, user_id, tenant_id, lock=lock)
        if found is None:
            raise UserMissing(user_id)
        return found
