"""Statements on what is watched."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import RowMapping, delete, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.alerts.watched import BalanceAlert, Spending
from billing.db.tables import api_key, balance_alert, promise_watermark, tenant
from billing.money import Femto
from billing.tenancy.periods import period_at
from billing.tenancy.rules.rule import KeptBudget

# What was recorded since the rollups' watermark is little: it is read once, for all budgets.
_SPENT: Final = text("""
    WITH fresh AS MATERIALIZED (
        SELECT tenant_id, key_id, rated_at AS at, charge FROM usage_event
        WHERE recorded_at >= (SELECT recorded_before FROM rollup_watermark)
    ), asked AS (
        SELECT * FROM unnest(
            CAST(:ids AS text[]), CAST(:tenants AS text[]), CAST(:levels AS text[]), CAST(:owners AS text[]),
            CAST(:starts AS timestamptz[]), CAST(:untils AS timestamptz[])
        ) AS asked (id, tenant_id, level, owner_id, start, until)
    )
    SELECT asked.id, coalesce(sum(used.charge), 0) FROM asked CROSS JOIN LATERAL (
        SELECT key_id, charge FROM usage_rollup
        WHERE usage_rollup.tenant_id = asked.tenant_id AND slot >= asked.start AND slot < asked.until
        UNION ALL
        SELECT key_id, charge FROM fresh
        WHERE fresh.tenant_id = asked.tenant_id AND fresh.at >= asked.start AND fresh.at < asked.until
    ) AS used
    WHERE asked.level = 'tenant'
        OR asked.level = 'key' AND used.key_id = asked.owner_id
        OR used.key_id IN (SELECT id FROM api_key WHERE project_id = asked.owner_id)
    GROUP BY asked.id
""")


async def upsert_balance_alert(connection: AsyncConnection, tenant_id: str, threshold: Femto) -> None:
    """Not told yet. Refused by fk_balance_alert_tenant_id when there is no such tenant."""
    statement = insert(balance_alert).values(tenant_id=tenant_id, threshold=threshold)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["tenant_id"], set_={"threshold": threshold, "low": False}
        )
    )


async def delete_balance_alert(connection: AsyncConnection, tenant_id: str) -> int:
    """None is left; returns how many there were."""
    c = balance_alert.c
    statement = delete(balance_alert).where(c.tenant_id == tenant_id).returning(c.tenant_id)
    return len((await connection.execute(statement)).all())


async def select_balance_alert(connection: AsyncConnection, tenant_id: str) -> BalanceAlert | None:
    """Of one tenant."""
    found = await connection.execute(select(balance_alert).where(balance_alert.c.tenant_id == tenant_id))
    row = found.mappings().first()
    return None if row is None else _alert(row)


async def lock_balance_alerts(connection: AsyncConnection) -> list[BalanceAlert]:
    """Of all tenants, in their order."""
    found = await connection.execute(
        select(balance_alert).order_by(balance_alert.c.tenant_id).with_for_update(key_share=True)
    )
    return [_alert(row) for row in found.mappings()]


async def update_balance_alert(connection: AsyncConnection, alert: BalanceAlert) -> None:
    """One that is locked."""
    await connection.execute(
        update(balance_alert)
        .where(balance_alert.c.tenant_id == alert.tenant_id)
        .values(low=alert.low, occasions=alert.occasions)
    )


async def select_spending(
    connection: AsyncConnection, budgets: Sequence[KeptBudget], at: datetime
) -> list[Spending]:
    """What is spent of each budget in its present period, where that is anything; all of one instant."""
    periods = [period_at(kept.budget, at) for kept in budgets]
    spent = await connection.execute(
        _SPENT,
        {
            "ids": [kept.id for kept in budgets],
            "tenants": [kept.owner.tenant_id for kept in budgets],
            "levels": [kept.owner.level for kept in budgets],
            "owners": [kept.owner.id for kept in budgets],
            "starts": [period.start for period in periods],
            "untils": [period.until for period in periods],
        },
    )
    of_budget = {budget_id: Femto(int(charge)) for budget_id, charge in spent}
    return [
        Spending(kept, period.start, period.until, of_budget[kept.id])
        for kept, period in zip(budgets, periods, strict=True)
        if of_budget.get(kept.id)
    ]


async def select_expiring(
    connection: AsyncConnection, after: datetime, until: datetime
) -> list[tuple[str, str, str, datetime, datetime]]:
    """Id, tenant, name, beginning and end of each key in use that ends in ``(after, until]``."""
    c = api_key.c
    found = await connection.execute(
        select(c.id, c.tenant_id, c.name, c.created_at, c.expires_at)
        .where(c.revoked_at.is_(None), c.expires_at > after, c.expires_at <= until)
        .order_by(c.tenant_id, c.id)
    )
    return [tuple(row) for row in found]


async def select_currencies(connection: AsyncConnection) -> dict[str, str]:
    """By tenant, but of those who are erased."""
    found = await connection.execute(
        select(tenant.c.id, tenant.c.currency).where(tenant.c.erased_at.is_(None)).order_by(tenant.c.id)
    )
    return {row.id: row.currency for row in found}


async def lock_promise_watermark(connection: AsyncConnection) -> datetime:
    """Nobody else looks before this transaction ends."""
    found = await connection.execute(select(promise_watermark.c.recorded_before).with_for_update())
    told_before: datetime = found.scalar_one()
    return told_before


async def move_promise_watermark(connection: AsyncConnection, to: datetime) -> None:
    """What was recorded before ``to`` is told."""
    await connection.execute(update(promise_watermark).values(recorded_before=to))


def _alert(row: RowMapping) -> BalanceAlert:
    return BalanceAlert(row["tenant_id"], Femto(row["threshold"]), row["low"], row["occasions"])
