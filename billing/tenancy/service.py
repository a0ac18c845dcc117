"""Tenants and their keys: make, list, revoke, find."""

import secrets
from datetime import datetime

from billing.db.access import OPERATOR_READ, of_tenant
from billing.db.transaction import Database
from billing.errors import KeyMissing, StoreRefused, TenantExists, TenantMissing
from billing.tenancy import keys, repository
from billing.tenancy.api_key import ApiKey, IssuedKey, KeyGrant
from billing.tenancy.tenant import Tenant


class Tenancy:
    """Who may ask and who pays.

    Args:
        pepper: deployment secret under which keys are hashed; another pepper makes all keys unknown.
    """

    def __init__(self, database: Database, pepper: bytes) -> None:
        self._database = database
        self._pepper = pepper

    async def create_tenant(self, name: str, currency: str = "USD", *, at: datetime) -> Tenant:
        """Make a tenant.

        Raises:
            TenantExists: the name is taken.
            StoreRefused: no name, or a currency that is not three capital letters.
        """
        tenant = Tenant(f"ten_{secrets.token_hex(12)}", name, currency, at)
        async with self._database.transaction() as connection:
            if not await repository.insert_tenant(connection, tenant):
                raise TenantExists(name)
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

    async def create_key(self, tenant_id: str, name: str, at: datetime) -> IssuedKey:
        """Make a key; the answer is the only place where its secret ever appears.

        Raises:
            TenantMissing: no tenant has this id.
        """
        secret = keys.secret_of(secrets.token_bytes(keys.ENTROPY_BYTES))
        key = ApiKey(f"key_{secrets.token_hex(8)}", tenant_id, name, keys.shown_prefix(secret), at)
        try:
            async with self._database.transaction(of_tenant(tenant_id)) as connection:
                await repository.insert_key(connection, key, self.digest(secret))
        except StoreRefused as refusal:
            if refusal.constraint == "fk_api_key_tenant_id":
                raise TenantMissing(tenant_id) from refusal
            raise
        return IssuedKey(secret, key)

    async def keys(self, tenant_id: str | None = None) -> list[ApiKey]:
        """Keys of one tenant, or of all; revoked ones too, oldest first."""
        access = OPERATOR_READ if tenant_id is None else of_tenant(tenant_id)
        async with self._database.transaction(access) as connection:
            return await repository.select_keys(connection, tenant_id)

    async def revoke_key(self, key_id: str, at: datetime) -> ApiKey:
        """Revoke a key; again changes nothing.

        Raises:
            KeyMissing: no key has this id.
        """
        async with self._database.transaction() as connection:
            key = await repository.revoke_key(connection, key_id, at)
        if key is None:
            raise KeyMissing(key_id)
        return key

    def digest(self, secret: str) -> bytes:
        """What find_key looks for."""
        return keys.digest(secret, self._pepper)

    async def find_key(self, digest: bytes) -> KeyGrant | None:
        """The key with this digest, revoked or not."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_grant(connection, digest)
