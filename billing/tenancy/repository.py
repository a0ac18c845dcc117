"""Statements on tenants and API keys."""

from datetime import datetime
from typing import Final

from sqlalchemy import RowMapping, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.tables import api_key, tenant
from billing.tenancy.api_key import ApiKey, KeyGrant
from billing.tenancy.tenant import Tenant

_KEY_COLUMNS: Final = [
    api_key.c[name] for name in ("id", "tenant_id", "name", "prefix", "created_at", "revoked_at")
]


async def insert_tenant(connection: AsyncConnection, row: Tenant) -> bool:
    """False when the name is taken."""
    statement = (
        insert(tenant)
        .values(id=row.id, name=row.name, currency=row.currency, created_at=row.created_at)
        .on_conflict_do_nothing(index_elements=["name"])
        .returning(tenant.c.id)
    )
    return (await connection.execute(statement)).first() is not None


async def select_tenants(connection: AsyncConnection) -> list[Tenant]:
    """All, oldest first."""
    found = await connection.execute(select(tenant).order_by(tenant.c.created_at, tenant.c.id))
    return [Tenant(**row) for row in found.mappings()]


async def select_tenant(connection: AsyncConnection, name_or_id: str) -> Tenant | None:
    """An id wins over an equal name."""
    statement = (
        select(tenant)
        .where(or_(tenant.c.id == name_or_id, tenant.c.name == name_or_id))
        .order_by((tenant.c.id == name_or_id).desc())
        .limit(1)
    )
    row = (await connection.execute(statement)).mappings().first()
    return None if row is None else Tenant(**row)


async def insert_key(connection: AsyncConnection, key: ApiKey, digest: bytes) -> None:
    """Refused by fk_api_key_tenant_id when there is no such tenant."""
    await connection.execute(
        insert(api_key).values(
            id=key.id,
            tenant_id=key.tenant_id,
            name=key.name,
            prefix=key.prefix,
            digest=digest,
            created_at=key.created_at,
        )
    )


async def select_keys(connection: AsyncConnection, tenant_id: str | None) -> list[ApiKey]:
    """Of one tenant, or all; oldest first."""
    statement = select(*_KEY_COLUMNS).order_by(api_key.c.created_at, api_key.c.id)
    if tenant_id is not None:
        statement = statement.where(api_key.c.tenant_id == tenant_id)
    return [_key(row) for row in (await connection.execute(statement)).mappings()]


async def revoke_key(connection: AsyncConnection, key_id: str, at: datetime) -> ApiKey | None:
    """A key that is revoked already keeps its first instant."""
    statement = (
        update(api_key)
        .where(api_key.c.id == key_id)
        .values(revoked_at=func.coalesce(api_key.c.revoked_at, at))
        .returning(*_KEY_COLUMNS)
    )
    row = (await connection.execute(statement)).mappings().first()
    return None if row is None else _key(row)


async def select_grant(connection: AsyncConnection, digest: bytes) -> KeyGrant | None:
    """By the key's HMAC."""
    statement = (
        select(
            api_key.c.id.label("key_id"),
            api_key.c.tenant_id,
            tenant.c.currency,
            api_key.c.revoked_at,
            api_key.c.name,
        )
        .join(tenant, tenant.c.id == api_key.c.tenant_id)
        .where(api_key.c.digest == digest)
    )
    row = (await connection.execute(statement)).mappings().first()
    return None if row is None else KeyGrant(**row)


def _key(row: RowMapping) -> ApiKey:
    return ApiKey(**row)
