"""Statements on price rows and their windows."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import RowMapping, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.tables import price_row, price_window
from billing.pricing.book import PriceRow
from billing.pricing.rates import Rates
from billing.pricing.window import Window

_PUBLISHING: Final = 0x70726963  # advisory lock, "pric"


async def lock(connection: AsyncConnection) -> None:
    """Let one publisher at a time look and append; readers and charges go on."""
    await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _PUBLISHING})


async def insert_row(connection: AsyncConnection, row: PriceRow, actor: str, at: datetime) -> None:
    """Append a row with its windows."""
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
            **_rate_values(row.standard),
        )
    )
    if row.windows:
        await connection.execute(insert(price_window), _window_values(row.id, row.windows))


async def select_rows(connection: AsyncConnection) -> tuple[PriceRow, ...]:
    """All rows."""
    windows: defaultdict[str, list[Window]] = defaultdict(list)
    ordered = select(price_window).order_by(price_window.c.price_row_id, price_window.c.position)
    for window in (await connection.execute(ordered)).mappings():
        windows[window["price_row_id"]].append(_window(window))
    found = (await connection.execute(select(price_row).order_by(price_row.c.id))).mappings()
    return tuple(_row(row, tuple(windows[row["id"]])) for row in found)


def _row(row: RowMapping, windows: tuple[Window, ...]) -> PriceRow:
    return PriceRow(
        model=row["model"],
        currency=row["currency"],
        effective_from=row["effective_from"],
        instant=row["instant"],
        standard=_rates(row),
        windows=windows,
        standard_name=row["standard_name"],
    )


def _window(row: RowMapping) -> Window:
    return Window(
        name=row["name"],
        rates=_rates(row),
        start=row["opens"],
        end=row["closes"],
        tz=row["tz"],
        days=frozenset(int(day) for day in row["days"]),
        holidays=row["holidays"],
    )


def _rates(row: RowMapping) -> Rates:
    return Rates(hit=row["hit"], miss=row["miss"], output=row["output"], write=row["write"])


def _window_values(price_row_id: str, windows: Sequence[Window]) -> list[dict[str, object]]:
    return [
        {
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
        for position, window in enumerate(windows)
    ]


def _rate_values(rates: Rates) -> dict[str, int | None]:
    return {"hit": rates.hit, "miss": rates.miss, "output": rates.output, "write": rates.write}
