"""Statements that read usage events."""

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.columns import FemtoNumeric
from billing.db.tables import api_key, balance, price_row, price_tier, price_window, tenant, usage_event
from billing.money import Femto
from billing.reports.usage_row import OwedRow, UsageFilter, UsageRow, Use, UseFilter


async def select_usage(connection: AsyncConnection, usage_filter: UsageFilter) -> list[UsageRow]:
    """Newest last."""
    event = usage_event.c
    statement = (
        select(
            event.request_id,
            tenant.c.name.label("tenant"),
            api_key.c.name.label("key"),
            *(event[name] for name in ("model", "rated_at", "status")),
            *(event[name] for name in ("cache_hit", "cache_owed", "cache_write", "cache_miss", "output")),
            *(
                event[name]
                for name in ("charge", "currency", "tenant_id", "key_id", "price_row_id", "price_window")
            ),
        )
        .join(tenant, tenant.c.id == event.tenant_id)
        .join(api_key, api_key.c.id == event.key_id)
        .order_by(event.rated_at.desc(), event.request_id.desc())
        .limit(usage_filter.limit)
    )
    if usage_filter.tenant_id is not None:
        statement = statement.where(event.tenant_id == usage_filter.tenant_id)
    if usage_filter.since is not None:
        statement = statement.where(event.rated_at >= usage_filter.since)
    if usage_filter.until is not None:
        statement = statement.where(event.rated_at < usage_filter.until)
    newest_first = [UsageRow(**row) for row in (await connection.execute(statement)).mappings()]
    return newest_first[::-1]


async def select_use(connection: AsyncConnection, use_filter: UseFilter) -> Use:
    """In one statement: sum and version are of one snapshot, and settlement raises it with its events."""
    event = usage_event.c
    version = select(balance.c.version).where(balance.c.tenant_id == use_filter.tenant_id).scalar_subquery()
    tokens = event.cache_hit + event.cache_owed + event.cache_write + event.cache_miss + event.output
    statement = select(
        func.coalesce(func.sum(event.charge, type_=FemtoNumeric), 0, type_=FemtoNumeric).label("charge"),
        func.coalesce(func.sum(tokens), 0).label("tokens"),
        func.coalesce(version, 0).label("balance_version"),
    ).where(
        event.tenant_id == use_filter.tenant_id,
        event.rated_at >= use_filter.since,
        event.rated_at < use_filter.until,
    )
    if use_filter.model is not None:
        statement = statement.where(event.model == use_filter.model)
    if use_filter.level == "key":
        statement = statement.where(event.key_id == use_filter.owner_id)
    elif use_filter.level == "project":
        of_project = select(api_key.c.id).where(api_key.c["project_id"] == use_filter.owner_id)
        statement = statement.where(event.key_id.in_(of_project))
    row = (await connection.execute(statement)).one()
    return Use(Femto(row.charge), int(row.tokens), row.balance_version)


async def select_owed(connection: AsyncConnection) -> list[OwedRow]:
    """By tenant and currency, at the rates that rated each event: its row's or window's, or their tier's."""
    event = usage_event.c
    position, of_window = (
        select(each)
        .where(price_window.c.price_row_id == event.price_row_id, price_window.c.name == event.price_window)
        .order_by(price_window.c.position)
        .limit(1)
        .correlate(usage_event)
        .scalar_subquery()
        for each in (price_window.c.position, price_window.c.miss - price_window.c.hit)
    )
    of_tier = (
        select(price_tier.c.miss - price_tier.c.hit)
        .where(
            price_tier.c.price_row_id == event.price_row_id,
            price_tier.c.tier == event.tier,
            price_tier.c.position == func.coalesce(position, -1),
        )
        .correlate(usage_event)
        .scalar_subquery()
    )
    a_token = func.coalesce(of_tier, of_window, price_row.c.miss - price_row.c.hit)
    statement = (
        select(
            event.tenant_id,
            event.currency,
            func.sum(event.cache_owed).label("tokens"),
            func.sum(event.cache_owed * a_token, type_=FemtoNumeric).label("cost"),
        )
        .join(price_row, price_row.c.id == event.price_row_id)
        .where(event.cache_owed > 0)
        .group_by(event.tenant_id, event.currency)
        .order_by(event.tenant_id)
    )
    return [OwedRow(**row) for row in (await connection.execute(statement)).mappings()]
