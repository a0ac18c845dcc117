"""Statements on users."""

from sqlalchemy import delete, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.pages import Page, paged
from billing.db.tables import tenant_user
from billing.tenancy.users.user import Role, User


async def insert_user(connection: AsyncConnection, row: User) -> bool:
    """False when the tenant has one of this address."""
    statement = (
        insert(tenant_user)
        .values(id=row.id, tenant_id=row.tenant_id, email=row.email, role=row.role, created_at=row.created_at)
        .on_conflict_do_nothing(index_elements=["tenant_id", "email"])
        .returning(tenant_user.c.id)
    )
    return (await connection.execute(statement)).first() is not None


async def select_users(connection: AsyncConnection, tenant_id: str | None, page: Page) -> list[User]:
    """Of one tenant, or all; oldest first."""
    statement = paged(select(tenant_user), tenant_user, page)
    if tenant_id is not None:
        statement = statement.where(tenant_user.c.tenant_id == tenant_id)
    return [User(**row) for row in (await connection.execute(statement)).mappings()]


async def select_user(
    connection: AsyncConnection, user_id: str, tenant_id: str | None, *, lock: bool = False
) -> User | None:
    """By id."""
    statement = select(tenant_user).where(tenant_user.c.id == user_id)
    if tenant_id is not None:
        statement = statement.where(tenant_user.c.tenant_id == tenant_id)
    if lock:
        statement = statement.with_for_update()
    row = (await connection.execute(statement)).mappings().first()
    return None if row is None else User(**row)


async def update_role(connection: AsyncConnection, user_id: str, role: Role) -> None:
    """Of a user that is locked."""
    await connection.execute(update(tenant_user).where(tenant_user.c.id == user_id).values(role=role))


async def delete_user(connection: AsyncConnection, user_id: str) -> None:
    """A user that is locked."""
    await connection.execute(delete(tenant_user).where(tenant_user.c.id == user_id))


async def delete_users(connection: AsyncConnection, tenant_id: str) -> int:
    """All of a tenant; returns how many there were."""
    statement = delete(tenant_user).where(tenant_user.c.tenant_id == tenant_id).returning(tenant_user.c.id)
    return len((await connection.execute(statement)).all())
