"""Statements on the price book: rows with their windows and tiers, plans, and who is on which."""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Final

from sqlalchemy import RowMapping, func, insert, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.columns import FemtoNumeric
from billing.db.tables import (
    ledger_entry,
    price_plan,
    price_row,
    price_tier,
    price_window,
    tenant_plan,
    usage_event,
)
from billing.money import Femto
from billing.pricing.book import Placement, PriceBook, PriceRow
from billing.pricing.rates import Rates
from billing.pricing.replay import Recorded
from billing.pricing.window import Window
from billing.usage import Tier, TokenUsage

_OF_ROW: Final = -1  # the position of tiers of the row itself
_RECORDED: Final = ("tenant_id", "model", "currency", "tier", "admitted_at", "rated_at", "recorded_at")

_PUBLISHING: Final = 0x70726963  # advisory lock, "pric"


async def lock(connection: AsyncConnection) -> None:
    """Let one publisher at a time look and append; readers and charges go on."""
    await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _PUBLISHING})


async def insert_row(connection: AsyncConnection, row: PriceRow, actor: str, at: datetime) -> None:
    """Append a row with its windows and tiers.

    Refused by fk_price_row_plan when there is no such plan, and by fk_price_row_tenant_id_currency when there
    is no such tenant, or it is billed in another currency.
    """
    await connection.execute(
        insert(price_row).values(
            id=row.id,
            model=row.model,
            currency=row.currency,
            effective_from=row.effective_from,
            instant=row.instant,
            standard_name=row.standard_name,
            published_at=at,
            published_by=actor,
            plan=row.plan,
            tenant_id=row.tenant_id,
            effective_until=row.effective_until,
            **_rate_values(row.standard),
        )
    )
    if row.windows:
        values = [_window_values(row.id, position, window) for position, window in enumerate(row.windows)]
        await connection.execute(insert(price_window), values)
    tiers = [
        {"price_row_id": row.id, "position": position, "tier": tier, **_rate_values(rates)}
        for position, offered in enumerate((row.standard, *(window.rates for window in row.windows)), _OF_ROW)
        for tier, rates in offered.offered.items()
        if tier != "standard"
    ]
    if tiers:
        await connection.execute(insert(price_tier), tiers)


async def insert_plan(connection: AsyncConnection, name: str, actor: str, at: datetime) -> bool:
    """False when the name is taken."""
    statement = (
        upsert(price_plan)
        .values(name=name, created_at=at, created_by=actor)
        .on_conflict_do_nothing(index_elements=["name"])
        .returning(price_plan.c.name)
    )
    return (await connection.execute(statement)).first() is not None


async def insert_placement(
    connection: AsyncConnection, placement: Placement, actor: str, at: datetime
) -> bool:
    """False when the tenant is placed at this instant already.

    Refused by fk_tenant_plan_plan and fk_tenant_plan_tenant_id when there is no such plan or tenant.
    """
    statement = (
        upsert(tenant_plan)
        .values(
            tenant_id=placement.tenant_id,
            effective_from=placement.effective_from,
            plan=placement.plan,
            placed_at=at,
            placed_by=actor,
        )
        .on_conflict_do_nothing(index_elements=["tenant_id", "effective_from"])
        .returning(tenant_plan.c.tenant_id)
    )
    return (await connection.execute(statement)).first() is not None


async def select_plans(connection: AsyncConnection) -> list[str]:
    """All names, in order."""
    return list((await connection.execute(select(price_plan.c.name).order_by(price_plan.c.name))).scalars())


async def select_book(connection: AsyncConnection) -> PriceBook:
    """All rows and placements. Rows are read first: what belongs to them was committed with them."""
    rows = (await connection.execute(select(price_row).order_by(price_row.c.id))).mappings().all()
    ordered = select(price_window).order_by(price_window.c.price_row_id, price_window.c.position)
    tiers: defaultdict[tuple[str, int], dict[Tier, Rates]] = defaultdict(dict)
    windows: defaultdict[str, list[Window]] = defaultdict(list)
    found = (await connection.execute(ordered)).mappings().all()
    for tier in (await connection.execute(select(price_tier))).mappings():
        tiers[tier["price_row_id"], tier["position"]][tier["tier"]] = _rates(tier, {})
    for each in found:
        rates = _rates(each, tiers[each["price_row_id"], each["position"]])
        windows[each["price_row_id"]].append(_window(each, rates))
    placed = (await connection.execute(select(tenant_plan))).mappings()
    return PriceBook(
        tuple(_row(row, _rates(row, tiers[row["id"], _OF_ROW]), windows[row["id"]]) for row in rows),
        tuple(Placement(row["tenant_id"], row["effective_from"], row["plan"]) for row in placed),
    )


async def stream_recorded(
    connection: AsyncConnection, since: datetime, until: datetime
) -> AsyncIterator[Recorded]:
    """Requests rated in ``[since, until)`` with what the ledger took for each, a few at a time."""
    event, entry = usage_event.c, ledger_entry.c
    posted = (
        select(func.sum(entry.amount, type_=FemtoNumeric))
        .where(entry.transaction_id == event.request_id, entry.account == "revenue")
        .correlate(usage_event)
        .scalar_subquery()
    )
    statement = select(usage_event, posted.label("posted")).where(
        event.rated_at >= since, event.rated_at < until
    )
    async with connection.stream(statement, execution_options={"yield_per": 1000}) as found:
        async for row in found.mappings():
            yield Recorded(
                usage=TokenUsage(**{bucket.name: row[bucket.name] for bucket in fields(TokenUsage)}),
                posted=Femto(row["posted"] or 0),
                **{name: row[name] for name in _RECORDED},
            )


def _row(row: RowMapping, standard: Rates, windows: list[Window]) -> PriceRow:
    return PriceRow(
        model=row["model"],
        currency=row["currency"],
        effective_from=row["effective_from"],
        instant=row["instant"],
        standard=standard,
        windows=tuple(windows),
        standard_name=row["standard_name"],
        plan=row["plan"],
        tenant_id=row["tenant_id"],
        effective_until=row["effective_until"],
    )


def _window(row: RowMapping, rates: Rates) -> Window:
    return Window(
        name=row["name"],
        rates=rates,
        start=row["opens"],
        end=row["closes"],
        tz=row["tz"],
        days=frozenset(int(day) for day in row["days"]),
        holidays=row["holidays"],
    )


def _rates(row: RowMapping, tiers: Mapping[Tier, Rates]) -> Rates:
    return Rates(
        hit=row["hit"],
        miss=row["miss"],
        output=row["output"],
        write=row["write"],
        flex=tiers.get("flex"),
        batch=tiers.get("batch"),
    )


def _window_values(price_row_id: str, position: int, window: Window) -> dict[str, object]:
    return {
        "price_row_id": price_row_id,
        "position": position,
        "name": window.name,
        "opens": window.start,
        "closes": window.end,
        "tz": window.tz,
        "days": "".join(str(day) for day in sorted(window.days)),
        "holidays": window.holidays,
        **_rate_values(window.rates),
    }


def _rate_values(rates: Rates) -> dict[str, int | None]:
    return {"hit": rates.hit, "miss": rates.miss, "output": rates.output, "write": rates.write}
