"""Prices as the key's organisation is charged by them: its own, its plan's, the public ones. To be read."""

from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import msgspec
from litestar import get
from litestar.params import QueryParameter

from billing.errors import PriceMissing
from billing.money import rate_text
from billing.pricing.book import Instant, PriceBook, PriceRow
from billing.pricing.rates import Rates
from billing.pricing.toml import DAYS
from billing.pricing.window import Window
from billing.pricing.writing import hours_text
from billing.usage import Tier
from gateway.desk import AnyRequest, desk_of
from gateway.routes.management import edge
from gateway.routes.management.edge import After, Listed, RowsMax

UNIX_S_MAX: Final = 4_102_444_800  # 2100: no price begins later

At = Annotated[
    int | None,
    QueryParameter(
        ge=0, le=UNIX_S_MAX, description="Unix time: prices in force then, as published by now. Absent: now."
    ),
]


class RatesShown(msgspec.Struct):
    """Exact decimals in the organisation's currency per 1M tokens; null: cache writes have no price."""

    hit_per_mtok: str
    miss_per_mtok: str
    output_per_mtok: str
    write_per_mtok: str | None


class WindowShown(msgspec.Struct):
    """Other rates at these hours, ``[start, end)`` in the time zone."""

    name: str
    zone: str
    hours: str
    days: list[str]
    not_on_holidays_of: str | None
    tiers: dict[Tier, RatesShown]


class PriceShown(msgspec.Struct):
    """A row of the price book; the first window that is open rates, else the row's own tiers.

    ``window`` is the one of the instant asked for; ``rated_when`` says which instant of a request rates it.
    """

    id: str
    model: str
    currency: str
    effective_from: datetime
    effective_until: datetime | None
    rated_when: Instant
    window: str
    tiers: dict[Tier, RatesShown]
    windows: list[WindowShown]
    object: Literal["organization.price"] = "organization.price"


@get("/prices")
async def list_prices(
    request: AnyRequest, at: At = None, after: After = None, limit: RowsMax = edge.ROWS_DEFAULT
) -> Listed[PriceShown]:
    """List the price of each model that has one in the organisation's currency."""
    by = edge.manager(request)
    instant = await edge.now(request) if at is None else datetime.fromtimestamp(at, UTC)
    rows = _in_force(desk_of(request).prices.book.of(by.tenant_id), by.currency, instant)
    page = [row for row in rows if after is None or row.id > after]
    return edge.listed(page, limit, lambda row: _shown(row, instant))


def _in_force(book: PriceBook, currency: str, at: datetime) -> list[PriceRow]:
    found = []
    for model in {row.model for row in book.rows if row.currency == currency}:
        try:
            found.append(book.row(model, currency, at))
        except PriceMissing:
            continue
    return sorted(found, key=lambda row: row.id)


def _shown(row: PriceRow, at: datetime) -> PriceShown:
    return PriceShown(
        id=row.id,
        model=row.model,
        currency=row.currency,
        effective_from=row.effective_from,
        effective_until=row.effective_until,
        rated_when=row.instant,
        window=row.rates_at(at)[0],
        tiers=_tiers(row.standard),
        windows=[_window(window) for window in row.windows],
    )


def _window(window: Window) -> WindowShown:
    return WindowShown(
        name=window.name,
        zone=window.tz,
        hours=hours_text(window),
        days=[DAYS[day] for day in sorted(window.days)],
        not_on_holidays_of=window.holidays,
        tiers=_tiers(window.rates),
    )


def _tiers(rates: Rates) -> dict[Tier, RatesShown]:
    return {
        tier: RatesShown(
            hit_per_mtok=rate_text(each.hit),
            miss_per_mtok=rate_text(each.miss),
            output_per_mtok=rate_text(each.output),
            write_per_mtok=None if each.write is None else rate_text(each.write),
        )
        for tier, each in rates.offered.items()
    }


HANDLERS: Final = [list_prices]
