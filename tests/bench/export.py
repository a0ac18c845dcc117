"""Exports of requests: rows a second of each form beside a bare COPY of the table, and that memory is flat.

One Postgres with the settings of `kvitto up`; the forms and the bare COPY in turn on the same rows, each to a
sink that forgets them. Memory is the growth of this process's peak from an export of a tenth to one of all.
"""

import resource
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Final

import asyncpg
import uvloop
from rich.console import Console

from billing.db.transaction import Database
from billing.interval import Interval
from billing.reports.export.order import FORMS, ExportOrder
from billing.reports.export.service import Exports
from tests.bench.books import durable_postgres, furnish
from tests.bench.row import Row

ROWS: Final = 500_000
ROUNDS: Final = 3

CSV_ROWS_PER_S_MIN: Final = 100_000.0
GROWN_MIB_MAX: Final = 16.0

_BEGAN: Final = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
_APART: Final = timedelta(milliseconds=7)
_FILL: Final = """
    INSERT INTO usage_event (request_id, tenant_id, key_id, model, status, traffic_class, admitted_at,
        rated_at, cache_hit, cache_owed, cache_write, cache_miss, output, reasoning, charge, currency,
        price_row_id, price_window, tier, attempts)
    SELECT CAST(lpad(to_hex(CAST(extract(epoch FROM at) * 1000 AS bigint)), 12, '0') || '7'
            || substr(md5(CAST(n AS text)), 1, 3) || '8' || substr(md5(CAST(n AS text)), 4, 15) AS uuid),
        key.tenant_id, key.id, row.model, 'completed', 'chat', at, at, 128, n % 64, 0, 72, 300, 0,
        (128 + n % 64) * row.hit + 72 * row.miss + 300 * row.output, 'USD', row.id, row.standard_name,
        'standard', '[[0, "both", "worker-0", 0, 300]]'
    FROM generate_series(1, CAST($1 AS integer)) AS n
    CROSS JOIN LATERAL (SELECT CAST($2 AS timestamptz) + n * CAST($3 AS interval)) AS later(at)
    JOIN (SELECT *, row_number() OVER (ORDER BY id) - 1 AS place FROM api_key) AS key
        ON key.place = n % (SELECT count(*) FROM api_key)
    CROSS JOIN (SELECT * FROM price_row WHERE currency = 'USD' ORDER BY id LIMIT 1) AS row
"""
_BARE: Final = "SELECT * FROM usage_event WHERE rated_at >= $1 AND rated_at < $2"


async def _forget(_: bytes) -> None:
    pass


async def _bare(connection: asyncpg.Connection, interval: Interval) -> float:
    began_s = time.perf_counter()
    await connection.copy_from_query(_BARE, interval.since, interval.until, output=_forget, format="csv")
    return ROWS / (time.perf_counter() - began_s)


async def _ours(exports: Exports, order: ExportOrder) -> float:
    began_s = time.perf_counter()
    written = await exports.write(order, _forget)
    return written.rows / (time.perf_counter() - began_s)


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


async def _measured(url: str) -> list[Row]:
    database = Database(url)
    await furnish(database)
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    await connection.execute(_FILL, ROWS, _BEGAN, _APART)
    await connection.execute("VACUUM ANALYZE usage_event")
    whole = Interval(_BEGAN, _BEGAN + (ROWS + 1) * _APART)
    tenth = Interval(_BEGAN, _BEGAN + ROWS // 10 * _APART)
    exports, order = Exports(database), ExportOrder("requests", "csv", whole, "Europe/Stockholm")
    rates: dict[str, list[float]] = {name: [] for name in (*FORMS, "bare")}
    grown: dict[str, float] = {}
    for form in FORMS:
        await _ours(exports, replace(order, form=form, interval=tenth))
        before = _peak_mib()
        rates[form].append(await _ours(exports, replace(order, form=form)))
        grown[form] = _peak_mib() - before
    for number in range(ROUNDS):
        rates["bare"].append(await _bare(connection, whole))
        for form in FORMS:
            rates[form].append(await _ours(exports, replace(order, form=form)))
        said = ", ".join(f"{name} {found[-1]:,.0f}/s" for name, found in rates.items())
        Console(stderr=True).print(f"export: round {number + 1}: {said}")
    await connection.close()
    await database.close()
    return rows(rates, grown)


def rows(rates: dict[str, list[float]], grown: dict[str, float]) -> list[Row]:
    """Medians over the rounds; the ratio is taken round by round."""
    pairs = zip(rates["csv"][-len(rates["bare"]) :], rates["bare"], strict=True)
    rounds = f"of {len(rates['bare'])} rounds of {ROWS:,} rows"
    return [
        Row(
            "CSV",
            median(rates["csv"]),
            "/s",
            floor=CSV_ROWS_PER_S_MIN,
            remark=f"{rounds}, {min(rates['csv']):,.0f} at worst",
        ),
        Row("JSON Lines", median(rates["jsonl"]), "/s"),
        Row("Parquet", median(rates["parquet"]), "/s"),
        Row("a bare COPY of the table", median(rates["bare"]), "/s", remark="unordered, without names"),
        Row("CSV : bare COPY", median(ours / bare for ours, bare in pairs), "ratio", remark=rounds),
        *(
            Row(f"{form}: MiB more for ten times the rows", more, "", GROWN_MIB_MAX)
            for form, more in grown.items()
        ),
    ]


def measure() -> list[Row]:
    """On a database of its own."""
    with durable_postgres() as url:
        return uvloop.run(_measured(url))
