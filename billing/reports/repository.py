"""Statements that read usage events."""

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.columns import FemtoNumeric
from billing.db.tables import (
    api_key,
    attestation,
    price_row,
    price_window,
    tenant,
    usage_event,
    usage_quarantine,
)
from billing.reports.usage_row import OwedRow, QuarantinedRow, UsageFilter, UsageRow


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


async def select_quarantined(connection: AsyncConnection, usage_filter: UsageFilter) -> list[QuarantinedRow]:
    """Newest last; the filter is on the instant of recording."""
    c = usage_quarantine.c
    documents = aggregate_order_by(attestation.c.document, attestation.c.attempt, attestation.c.kind)
    journaled = (
        select(func.array_to_string(func.array_agg(documents), "\n"))
        .where(attestation.c.request_id == c.request_id)
        .scalar_subquery()
    )
    statement = (
        select(
            c.request_id,
            func.coalesce(tenant.c.name, c.tenant_id).label("tenant"),
            c.recorded_at,
            c.reason,
            func.coalesce(c.attestation, journaled).label("attestation"),
        )
        .outerjoin(tenant, tenant.c.id == c.tenant_id)
        .order_by(c.recorded_at.desc(), c.request_id.desc())
        .limit(usage_filter.limit)
    )
    if usage_filter.tenant_id is not None:
        statement = statement.where(c.tenant_id == usage_filter.tenant_id)
    if usage_filter.since is not None:
        statement = statement.where(c.recorded_at >= usage_filter.since)
    if usage_filter.until is not None:
        statement = statement.where(c.recorded_at < usage_filter.until)
    newest_first = [QuarantinedRow(**row) for row in (await connection.execute(statement)).mappings()]
    return newest_first[::-1]


async def select_owed(connection: AsyncConnection) -> list[OwedRow]:
    """By tenant and currency, at the rates that rated each event: its price row's, or its window's."""
    event = usage_event.c
    of_window = (
        select(price_window.c.miss - price_window.c.hit)
        .where(price_window.c.price_row_id == event.price_row_id, price_window.c.name == event.price_window)
        .order_by(price_window.c.position)
        .limit(1)
        .correlate(usage_event)
        .scalar_subquery()
    )
    a_token = func.coalesce(of_window, price_row.c.miss - price_row.c.hit)
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
