"""Statements on limits and budgets."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    JSON,
    ColumnElement,
    RowMapping,
    ScalarSelect,
    Table,
    and_,
    case,
    delete,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.pages import Page, paged
from billing.db.tables import api_key, budget, tenant, usage_limit
from billing.money import Femto
from billing.tenancy.limits import Budget, Limit
from billing.tenancy.rules.rule import KeptBudget, KeptLimit, Owner

_LIMIT: Final = ("measure", "amount", "model", "per_user", "cached_free")
_BUDGETS: Final = select(budget, tenant.c.tz).join(tenant, tenant.c.id == budget.c.tenant_id)


def limits_of_key() -> ScalarSelect[Any]:
    """As a column of a query on api_key: those of the key, its project and its tenant, for `limits_in`."""
    return _of_key(usage_limit, [usage_limit.c[name] for name in _LIMIT])


def limits_in(column: Sequence[Sequence[Any]]) -> tuple[Limit, ...]:
    """Read `limits_of_key`."""
    return tuple(Limit(*row) for row in column)


def budgets_of_key() -> ScalarSelect[Any]:
    """As a column of a query on api_key: those of the key, its project and its tenant, for `budgets_in`."""
    return _of_key(budget, [budget.c[name] for name in ("amount", "period", "hard", "id")])


def budgets_in(column: Sequence[Sequence[Any]], tz: str) -> tuple[Budget, ...]:
    """Read `budgets_of_key`."""
    return tuple(
        Budget(budget_id, level, owner_id, Femto(amount), period, tz, hard)
        for level, owner_id, amount, period, hard, budget_id in column
    )


async def upsert_limit(connection: AsyncConnection, row: KeptLimit) -> KeptLimit:
    """One of the same owner, measure, model and ``per_user`` keeps its id and takes over the rest."""
    owner, limit = row.owner, row.limit
    statement = (
        insert(usage_limit)
        .values(
            id=row.id,
            **_owner_values(owner),
            **{name: getattr(limit, name) for name in _LIMIT},
            created_at=row.created_at,
        )
        .on_conflict_do_update(
            constraint="uq_usage_limit_rule",
            set_={"amount": limit.amount, "cached_free": limit.cached_free},
        )
        .returning(usage_limit)
    )
    return _kept_limit((await connection.execute(statement)).mappings().one())


async def select_limits(connection: AsyncConnection, tenant_id: str | None, page: Page) -> list[KeptLimit]:
    """Of one tenant, or all; oldest first."""
    statement = paged(select(usage_limit), usage_limit, page)
    if tenant_id is not None:
        statement = statement.where(usage_limit.c.tenant_id == tenant_id)
    return [_kept_limit(row) for row in (await connection.execute(statement)).mappings()]


async def select_limit(
    connection: AsyncConnection, limit_id: str, tenant_id: str | None, *, lock: bool = False
) -> KeptLimit | None:
    """By id."""
    statement = select(usage_limit).where(usage_limit.c.id == limit_id)
    if tenant_id is not None:
        statement = statement.where(usage_limit.c.tenant_id == tenant_id)
    if lock:
        statement = statement.with_for_update()
    row = (await connection.execute(statement)).mappings().first()
    return None if row is None else _kept_limit(row)


async def select_same_limit(connection: AsyncConnection, row: KeptLimit) -> KeptLimit | None:
    """The one that `upsert_limit` would change, locked."""
    same = {
        **_owner_values(row.owner),
        **{name: getattr(row.limit, name) for name in ("measure", "model", "per_user")},
    }
    statement = select(usage_limit).where(
        *(usage_limit.c[name].is_not_distinct_from(value) for name, value in same.items())
    )
    found = (await connection.execute(statement.with_for_update())).mappings().first()
    return None if found is None else _kept_limit(found)


async def insert_budget(connection: AsyncConnection, row: KeptBudget) -> None:
    """A new one."""
    values = {name: getattr(row.budget, name) for name in ("id", "amount", "period", "hard")}
    await connection.execute(
        insert(budget).values(**values, **_owner_values(row.owner), created_at=row.created_at)
    )


async def select_budgets(connection: AsyncConnection, tenant_id: str | None, page: Page) -> list[KeptBudget]:
    """Of one tenant, or all; oldest first."""
    statement = paged(_BUDGETS, budget, page)
    if tenant_id is not None:
        statement = statement.where(budget.c.tenant_id == tenant_id)
    return [_kept_budget(row) for row in (await connection.execute(statement)).mappings()]


async def select_budget(
    connection: AsyncConnection, budget_id: str, tenant_id: str | None, *, lock: bool = False
) -> KeptBudget | None:
    """By id."""
    statement = _BUDGETS.where(budget.c.id == budget_id)
    if tenant_id is not None:
        statement = statement.where(budget.c.tenant_id == tenant_id)
    if lock:
        statement = statement.with_for_update(of=budget)
    row = (await connection.execute(statement)).mappings().first()
    return None if row is None else _kept_budget(row)


async def update_budget(connection: AsyncConnection, changed: Budget) -> None:
    """Amount and hardness, of a budget that is locked."""
    await connection.execute(
        update(budget).where(budget.c.id == changed.id).values(amount=changed.amount, hard=changed.hard)
    )


async def delete_limit(connection: AsyncConnection, limit_id: str) -> None:
    """One that is locked."""
    await connection.execute(delete(usage_limit).where(usage_limit.c.id == limit_id))


async def delete_budget(connection: AsyncConnection, budget_id: str) -> None:
    """One that is locked."""
    await connection.execute(delete(budget).where(budget.c.id == budget_id))


def _of_key(rules: Table, columns: Sequence[ColumnElement[Any]]) -> ScalarSelect[Any]:
    owner = rules.c
    level = case(
        (owner.key_id.is_not(None), "key"), (owner.project_id.is_not(None), "project"), else_="tenant"
    )
    covers = or_(
        owner.key_id == api_key.c.id,
        owner.project_id == api_key.c.project_id,
        and_(owner.key_id.is_(None), owner.project_id.is_(None)),
    )
    owner_id = func.coalesce(owner.key_id, owner.project_id, owner.tenant_id)
    rule = aggregate_order_by(func.json_build_array(level, owner_id, *columns), owner.created_at, owner.id)
    return (
        select(func.coalesce(func.json_agg(rule), func.json_build_array(), type_=JSON))
        .where(owner.tenant_id == api_key.c.tenant_id, covers)
        .correlate(api_key)
        .scalar_subquery()
    )


def _owner_values(owner: Owner) -> dict[str, str | None]:
    return {"tenant_id": owner.tenant_id, "project_id": owner.project_id, "key_id": owner.key_id}


def _owner(row: RowMapping) -> Owner:
    return Owner(row["tenant_id"], row["project_id"], row["key_id"])


def _kept_limit(row: RowMapping) -> KeptLimit:
    owner = _owner(row)
    limit = Limit(owner.level, owner.id, *(row[name] for name in _LIMIT))
    return KeptLimit(row["id"], owner, row["created_at"], limit)


def _kept_budget(row: RowMapping) -> KeptBudget:
    owner = _owner(row)
    kept = Budget(
        row["id"], owner.level, owner.id, Femto(row["amount"]), row["period"], row["tz"], row["hard"]
    )
    return KeptBudget(owner, row["created_at"], kept)
