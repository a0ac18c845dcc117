"""Tenants and their keys: make, list, change, rotate, revoke, find."""

import secrets
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from billing.audit import service as audit
from billing.audit.event import Deed, facts_of
from billing.db.access import OPERATOR_READ, reading, writing
from billing.db.pages import WHOLE, Page
from billing.db.transaction import Connection, Database
from billing.errors import KeyMissing, ProjectMissing, TenancyInvalid, TenantExists, TenantMissing
from billing.tenancy import keys, repository
from billing.tenancy.api_key import ApiKey, IssuedKey, KeyChanges, KeyGrant, KeyTerms
from billing.tenancy.projects.repository import insert_project, select_project
from billing.tenancy.projects.service import new_project_id
from billing.tenancy.tenant import DEFAULT_PROJECT, BillingMode, Project, Tenant

OPERATOR: Final = "operator"


class Tenancy:
    """Who may ask and who pays. Whatever changes is in the audit log, under ``actor``.

    Where ``tenant_id`` is optional and given, keys of other tenants are not there.

    Args:
        pepper: deployment secret under which keys are hashed; another pepper makes all keys unknown.
    """

    def __init__(self, database: Database, pepper: bytes) -> None:
        self._database = database
        self._pepper = pepper

    async def create_tenant(
        self,
        name: str,
        currency: str = "USD",
        *,
        at: datetime,
        billing_mode: BillingMode = "prepaid",
        tz: str = "UTC",
        actor: str = OPERATOR,
    ) -> Tenant:
        """Make a tenant with its project ``default``.

        Raises:
            TenantExists: the name is taken.
            TenancyInvalid: no such time zone.
            StoreRefused: no name, or a currency that is not three capital letters.
        """
        tenant = Tenant(f"ten_{secrets.token_hex(12)}", name, currency, at, billing_mode, tz)
        async with self._database.transaction() as connection:
            if not await repository.insert_tenant(connection, tenant):
                raise TenantExists(name)
            project = Project(new_project_id(), tenant.id, DEFAULT_PROJECT, at)
            await insert_project(connection, project)
            deed = Deed(tenant.id, actor, "tenant.create", tenant.id, at, after=facts_of(tenant))
            await audit.append(connection, deed)
        return tenant

    async def tenants(self) -> list[Tenant]:
        """All tenants, oldest first."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_tenants(connection)

    async def tenant(self, name_or_id: str) -> Tenant:
        """One tenant.

        Raises:
            TenantMissing: none has this name or id.
        """
        async with self._database.transaction(OPERATOR_READ) as connection:
            found = await repository.select_tenant(connection, name_or_id)
        if found is None:
            raise TenantMissing(name_or_id)
        return found

    async def change_tenant(
        self,
        tenant_id: str,
        at: datetime,
        *,
        tz: str,
        actor: str = OPERATOR,
    ) -> Tenant:
        """Change where a tenant's days begin. How it pays is agreed with the ledger (`Ledger.agree`).

        Raises:
            TenantMissing: no tenant has this id.
            TenancyInvalid: no such time zone.
        """
        async with self._database.transaction() as connection:
            before = await repository.select_tenant(connection, tenant_id, lock=True)
            if before is None:
                raise TenantMissing(tenant_id)
            after = replace(before, tz=tz)
            await repository.update_tenant(connection, after)
            deed = Deed(before.id, actor, "tenant.set", before.id, at, facts_of(before), facts_of(after))
            await audit.append(connection, deed)
        return after

    async def create_key(
        self,
        tenant_id: str,
        name: str,
        at: datetime,
        *,
        terms: KeyTerms | None = None,
        project: str = DEFAULT_PROJECT,
        actor: str = OPERATOR,
    ) -> IssuedKey:
        """Make a key; the answer is the only place where its secret ever appears.

        Args:
            tenant_id: whose.
            name: what it is for.
            at: now.
            terms: what it may do; None: the usual.
            project: name or id of one of the tenant's projects.
            actor: for the audit log.

        Raises:
            TenantMissing, ProjectMissing: there is none, or the project is archived.
            TenancyInvalid: it would have expired already.
        """
        terms = terms or KeyTerms()
        _refuse_expired(terms, at)
        secret = keys.secret_of(secrets.token_bytes(keys.ENTROPY_BYTES), _prefix(terms))
        async with self._database.transaction(writing(tenant_id)) as connection:
            home = await select_project(connection, project, tenant_id, lock=True)
            if home is None or home.archived_at is not None:
                if await repository.select_tenant(connection, tenant_id) is None:
                    raise TenantMissing(tenant_id)
                raise ProjectMissing(project)
            key_id, prefix = f"key_{secrets.token_hex(8)}", keys.shown_prefix(secret)
            key = ApiKey(key_id, tenant_id, home.id, name, prefix, at, terms)
            await repository.insert_key(connection, key, self.digest(secret))
            await audit.append(
                connection, Deed(tenant_id, actor, "key.create", key.id, at, after=facts_of(key))
            )
        return IssuedKey(secret, key)

    async def keys(self, tenant_id: str | None = None, page: Page = WHOLE) -> list[ApiKey]:
        """Keys of one tenant, or of all; revoked ones too, oldest first."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await repository.select_keys(connection, tenant_id, page)

    async def key(self, key_id: str, tenant_id: str | None = None) -> ApiKey:
        """One key; raises KeyMissing."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await self._key(connection, key_id, tenant_id)

    async def change_key(
        self,
        key_id: str,
        changes: KeyChanges,
        at: datetime,
        *,
        tenant_id: str | None = None,
        actor: str = OPERATOR,
    ) -> ApiKey:
        """Change a key's name or terms; gateways follow as they do a revocation.

        Raises:
            KeyMissing: no key has this id.
            TenancyInvalid: terms that mean nothing, or an end that has passed.
        """
        async with self._database.transaction(writing(tenant_id)) as connection:
            before = await self._key(connection, key_id, tenant_id, lock=True)
            terms = {name: value for name, value in changes.items() if name != "name"}
            after = replace(
                before,
                name=changes.get("name", before.name),
                terms=replace(before.terms, **terms),  # type: ignore[arg-type]  # KeyChanges are terms
            )
            if after.terms.expires_at != before.terms.expires_at:
                _refuse_expired(after.terms, at)
            await repository.update_key(connection, after)
            await audit.append(connection, _deed("key.set", actor, at, before, after))
        return after

    async def rotate_key(
        self,
        key_id: str,
        grace: timedelta,
        at: datetime,
        *,
        tenant_id: str | None = None,
        actor: str = OPERATOR,
    ) -> IssuedKey:
        """Give a key a new secret; those before it work for ``grace`` longer, at most.

        Raises:
            KeyMissing: no key has this id.
            TenancyInvalid: it is revoked, or the grace is negative.
        """
        if grace < timedelta(0):
            raise TenancyInvalid("grace", "it cannot be negative")
        async with self._database.transaction(writing(tenant_id)) as connection:
            before = await self._key(connection, key_id, tenant_id, lock=True)
            if before.revoked_at is not None:
                raise TenancyInvalid("key", f"{key_id} is revoked: make another one")
            secret = keys.secret_of(secrets.token_bytes(keys.ENTROPY_BYTES), _prefix(before.terms))
            after = replace(before, prefix=keys.shown_prefix(secret))
            await repository.replace_secret(connection, after, self.digest(secret), at, at + grace)
            deed = _deed("key.rotate", actor, at, before, after)
            facts = {**(deed.after or {}), "grace_s": int(grace.total_seconds())}
            await audit.append(connection, replace(deed, after=facts))
        return IssuedKey(secret, after)

    async def revoke_key(
        self, key_id: str, at: datetime, *, tenant_id: str | None = None, actor: str = OPERATOR
    ) -> ApiKey:
        """Revoke a key with all its secrets; again changes nothing.

        Raises:
            KeyMissing: no key has this id.
        """
        async with self._database.transaction(writing(tenant_id)) as connection:
            before = await self._key(connection, key_id, tenant_id, lock=True)
            if before.revoked_at is not None:
                return before
            after = replace(before, revoked_at=at)
            await repository.update_key(connection, after)
            await audit.append(connection, _deed("key.revoke", actor, at, before, after))
        return after

    def digest(self, secret: str) -> bytes:
        """What find_key looks for."""
        return keys.digest(secret, self._pepper)

    async def find_key(self, digest: bytes) -> KeyGrant | None:
        """The key with this digest; revoked or lapsed ones too."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_grant(connection, digest)

    @staticmethod
    async def _key(
        connection: Connection, key_id: str, tenant_id: str | None, *, lock: bool = False
    ) -> ApiKey:
        found = await repository.select_key(connection, key_id, tenant_id, lock=lock)
        if found is None:
            raise KeyMissing(key_id)
        return found


def _prefix(terms: KeyTerms) -> str:
    if "inference" in terms.scopes:
        return keys.PREFIX
    return keys.MANAGEMENT_PREFIX if "management" in terms.scopes else keys.READING_PREFIX


def _refuse_expired(terms: KeyTerms, at: datetime) -> None:
    if terms.expires_at is not None and terms.expires_at <= at:
        raise TenancyInvalid("expires_at", "it has passed")


def _deed(action: str, actor: str, at: datetime, before: ApiKey, after: ApiKey) -> Deed:
    return Deed(before.tenant_id, actor, action, before.id, at, facts_of(before), facts_of(after))
