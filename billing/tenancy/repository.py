"""Statements on tenants and API keys."""

import secrets
from datetime import datetime
from typing import Any, Final

from sqlalchemy import RowMapping, bindparam, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.pages import Page, paged
from billing.db.tables import api_key, key_secret, tenant
from billing.tenancy.api_key import ApiKey, KeyGrant, KeyTerms, network_of
from billing.tenancy.rules.repository import budgets_in, budgets_of_key, limits_in, limits_of_key
from billing.tenancy.tenant import SuspendedBy, Suspension, Tenant

_PLAIN: Final = ("id", "name", "currency", "created_at", "billing_mode", "tz", "erased_at")
_SUSPENSION: Final = {"by": "suspended_by", "because": "suspended_because", "at": "suspended_at"}
_TENANT: Final = [tenant.c[name] for name in (*_PLAIN, *_SUSPENSION.values())]
_KEYS: Final = select(api_key, key_secret.c.prefix).join(
    key_secret, (key_secret.c.key_id == api_key.c.id) & key_secret.c.ends_at.is_(None)
)

# Made once: making it costs more than what Postgres does with it.
_GRANT: Final = (
    select(
        api_key,
        *(tenant.c[name] for name in ("currency", "tz", "suspended_by", "nonce_secret")),
        (func.least(api_key.c.expires_at, key_secret.c.ends_at) - func.clock_timestamp()).label("lapses_in"),
        limits_of_key().label("limits"),
        budgets_of_key().label("budgets"),
    )
    .select_from(key_secret)
    .join(api_key, api_key.c.id == key_secret.c.key_id)
    .join(tenant, tenant.c.id == api_key.c.tenant_id)
    .where(key_secret.c.digest == bindparam("digest"))
)


async def insert_tenant(connection: AsyncConnection, row: Tenant) -> bool:
    """False when the name is taken."""
    statement = (
        insert(tenant)
        .values({name: getattr(row, name) for name in _PLAIN})
        .on_conflict_do_nothing(index_elements=["name"])
        .returning(tenant.c.id)
    )
    return (await connection.execute(statement)).first() is not None


async def select_tenants(connection: AsyncConnection) -> list[Tenant]:
    """All, oldest first."""
    found = await connection.execute(select(*_TENANT).order_by(tenant.c.created_at, tenant.c.id))
    return [_tenant(row) for row in found.mappings()]


async def select_tenant(connection: AsyncConnection, name_or_id: str, *, lock: bool = False) -> Tenant | None:
    """An id wins over an equal name."""
    statement = (
        select(*_TENANT)
        .where(or_(tenant.c.id == name_or_id, tenant.c.name == name_or_id))
        .order_by((tenant.c.id == name_or_id).desc())
        .limit(1)
    )
    if lock:
        statement = statement.with_for_update()
    row = (await connection.execute(statement)).mappings().first()
    return None if row is None else _tenant(row)


async def select_suspended(connection: AsyncConnection, by: SuspendedBy) -> list[str]:
    """Ids of those who are suspended so."""
    found = await connection.execute(select(tenant.c.id).where(tenant.c.suspended_by == by))
    return list(found.scalars())


async def update_standing(connection: AsyncConnection, row: Tenant) -> None:
    """Suspension, erasure and name, of a tenant that is locked."""
    said = {
        column: None if row.suspension is None else getattr(row.suspension, name)
        for name, column in _SUSPENSION.items()
    }
    await connection.execute(
        update(tenant).where(tenant.c.id == row.id).values(name=row.name, erased_at=row.erased_at, **said)
    )


async def erase_nonce_secret(connection: AsyncConnection, tenant_id: str) -> int:
    """What workers attested of its prompts can be compared with no prompt any more; returns 1 if it could."""
    statement = (
        update(tenant)
        .where(tenant.c.id == tenant_id, tenant.c.nonce_secret.is_not(None))
        .values(nonce_secret=None)
        .returning(tenant.c.id)
    )
    return len((await connection.execute(statement)).all())


async def erase_keys(connection: AsyncConnection, tenant_id: str, at: datetime) -> int:
    """Revoke all keys of a tenant, drop their secrets, names and networks; returns how many there are."""
    await connection.execute(delete(key_secret).where(key_secret.c.tenant_id == tenant_id))
    statement = (
        update(api_key)
        .where(api_key.c.tenant_id == tenant_id)
        .values(name="erased", networks=None, revoked_at=func.coalesce(api_key.c.revoked_at, at))
        .returning(api_key.c.id)
    )
    return len((await connection.execute(statement)).all())


async def update_tenant(connection: AsyncConnection, row: Tenant) -> None:
    """What of it may change."""
    await connection.execute(update(tenant).where(tenant.c.id == row.id).values(tz=row.tz))


async def insert_key(connection: AsyncConnection, key: ApiKey, digest: bytes) -> None:
    """With its first secret. Refused by fk_api_key_tenant_id when there is no such tenant."""
    await connection.execute(
        insert(api_key).values(
            id=key.id,
            tenant_id=key.tenant_id,
            project_id=key.project_id,
            name=key.name,
            created_at=key.created_at,
            **_terms(key.terms),
        )
    )
    await _insert_secret(connection, key, digest, key.created_at)


async def replace_secret(
    connection: AsyncConnection, key: ApiKey, digest: bytes, at: datetime, ends_at: datetime
) -> None:
    """A new present secret; all before it work until ``ends_at`` at most."""
    await connection.execute(
        update(key_secret)
        .where(key_secret.c.key_id == key.id)
        .values(ends_at=func.least(key_secret.c.ends_at, ends_at))  # LEAST passes over null
    )
    await _insert_secret(connection, key, digest, at)


async def select_keys(connection: AsyncConnection, tenant_id: str | None, page: Page) -> list[ApiKey]:
    """Of one tenant, or all; oldest first."""
    statement = paged(_KEYS, api_key, page)
    if tenant_id is not None:
        statement = statement.where(api_key.c.tenant_id == tenant_id)
    return [_key(row) for row in (await connection.execute(statement)).mappings()]


async def select_key(
    connection: AsyncConnection, key_id: str, tenant_id: str | None, *, lock: bool = False
) -> ApiKey | None:
    """By id."""
    statement = _KEYS.where(api_key.c.id == key_id)
    if tenant_id is not None:
        statement = statement.where(api_key.c.tenant_id == tenant_id)
    if lock:
        statement = statement.with_for_update(of=api_key)
    row = (await connection.execute(statement)).mappings().first()
    return None if row is None else _key(row)


async def update_key(connection: AsyncConnection, key: ApiKey) -> None:
    """Name, terms and revocation, of a key that is locked."""
    await connection.execute(
        update(api_key)
        .where(api_key.c.id == key.id)
        .values(name=key.name, revoked_at=key.revoked_at, **_terms(key.terms))
    )


async def select_grant(connection: AsyncConnection, digest: bytes) -> KeyGrant | None:
    """By the HMAC of a secret; all a gateway needs in this one query."""
    row = (await connection.execute(_GRANT, {"digest": digest})).mappings().first()
    if row is None:
        return None
    return KeyGrant(
        key_id=row["id"],
        limits=limits_in(row["limits"]),
        budgets=budgets_in(row["budgets"], row["tz"]),
        terms=_terms_in(row),
        # Of an erased tenant nobody may ever guess a prompt either.
        nonce_secret=row["nonce_secret"] or secrets.token_bytes(32),
        **{
            name: row[name]
            for name in (
                *("tenant_id", "project_id", "currency", "revoked_at"),
                *("name", "lapses_in", "tz", "suspended_by"),
            )
        },
    )


async def _insert_secret(connection: AsyncConnection, key: ApiKey, digest: bytes, at: datetime) -> None:
    await connection.execute(
        insert(key_secret).values(
            digest=digest, tenant_id=key.tenant_id, key_id=key.id, prefix=key.prefix, created_at=at
        )
    )


def _tenant(row: RowMapping) -> Tenant:
    said = {name: row[column] for name, column in _SUSPENSION.items()}
    suspension = None if said["by"] is None else Suspension(**said)
    return Tenant(**{name: row[name] for name in _PLAIN}, suspension=suspension)


def _terms(terms: KeyTerms) -> dict[str, Any]:
    return {
        "scopes": sorted(terms.scopes),
        "models": None if terms.models is None else sorted(terms.models),
        "networks": None if terms.networks is None else [str(network) for network in terms.networks],
        "expires_at": terms.expires_at,
        "traffic_class": terms.traffic_class,
        "traffic_classes": sorted(terms.traffic_classes),
        "max_tokens": terms.max_tokens,
    }


def _terms_in(row: RowMapping) -> KeyTerms:
    models, networks = row["models"], row["networks"]
    return KeyTerms(
        scopes=frozenset(row["scopes"]),
        models=None if models is None else frozenset(models),
        networks=None if networks is None else tuple(map(network_of, networks)),
        expires_at=row["expires_at"],
        traffic_class=row["traffic_class"],
        traffic_classes=frozenset(row["traffic_classes"]),
        max_tokens=row["max_tokens"],
    )


def _key(row: RowMapping) -> ApiKey:
    named = {
        name: row[name]
        for name in ("id", "tenant_id", "project_id", "name", "prefix", "created_at", "revoked_at")
    }
    return ApiKey(**named, terms=_terms_in(row))
