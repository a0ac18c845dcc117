"""An invoice of ten million events: closed from rollups, and derived again from every event."""

import asyncio
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import text

from billing.db.access import OWNER, SETTLER
from billing.db.partitions import Partitions
from billing.db.transaction import Database
from billing.interval import SLOT
from billing.invoicing.closing import Place, gather
from billing.invoicing.service import Invoicing
from billing.pricing.document import row_sha256
from billing.pricing.service import Prices
from billing.pricing.toml import shipped
from billing.receipts.head import TreeHead
from billing.reports.repository import add_up
from billing.tenancy.service import Tenancy
from billing.tenancy.tenant import Tenant
from tests.bench import books
from tests.bench.books import MODEL
from tests.bench.row import Row
from tests.deployment import signer

EVENTS: Final = 10_000_000
KEYS: Final = 5
CHUNK: Final = 250_000
FROM_ROLLUPS_S: Final = 5.0
FROM_EVENTS_S: Final = 300.0

_MARCH: Final = datetime(2025, 3, 1, tzinfo=UTC)
_DAYS: Final = 31
_NOW: Final = datetime(2025, 4, 2, tzinfo=UTC)
# In UUIDv7s, of which one in a thousand was recorded an hour late, by windows of the demo prices.
_EVENTS: Final = text("""
    WITH drawn AS (
        SELECT timestamptz '2025-03-01Z'
            + interval '31 days' * ((n + 0.5) / CAST(:events AS double precision)) AS at,
            n, CAST(random() * 2000 AS int) AS hit, CAST(1 + random() * 4000 AS int) AS miss,
            CAST(random() * 1000 AS int) AS output, gen_random_uuid() AS noise
        FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n
    ), rated AS (
        SELECT *, CAST(at AT TIME ZONE 'UTC' AS time) NOT BETWEEN '00:30' AND '16:29:59.999999' AS offpeak
        FROM drawn
    )
    INSERT INTO usage_event (request_id, tenant_id, key_id, model, status, traffic_class,
        admitted_at, rated_at, cache_hit, cache_owed, cache_write, cache_miss, output, reasoning,
        charge, currency, price_row_id, price_window, tier, attempts, recorded_at)
    SELECT CAST(lpad(to_hex(CAST(extract(epoch FROM at) * 1000 AS bigint)), 12, '0') || '7'
            || substr(replace(noise::text, '-', ''), 14) AS uuid),
        :tenant, (CAST(:keys AS text[]))[1 + n % :key_count], :model, 'completed', 'chat', at, at,
        hit, 0, 0, miss, output, 0,
        CASE WHEN offpeak THEN 7000000::numeric ELSE 14000000 END * (hit + 10 * miss + 20 * output),
        'USD', :row, CASE WHEN offpeak THEN 'offpeak' ELSE 'standard' END, 'standard', '[]',
        at + CASE WHEN n % 1000 = 0 THEN interval '1 hour' ELSE interval '1 second' END
    FROM rated
""")


@dataclass(frozen=True, slots=True)
class _Head:
    """Implements `billing.invoicing.service.SealedHead`: behind all events."""

    head: TreeHead
    cut: datetime


@dataclass(frozen=True, slots=True)
class _Log:
    """Implements `billing.invoicing.service.HeadSource`."""

    newest: _Head

    async def close(self, now: datetime) -> _Head:
        """See `HeadSource`."""
        return self.newest


def measure(events: int = EVENTS) -> list[Row]:
    """Derive a month of one tenant from its events, and close it from rollups."""
    with books.durable_postgres() as url:
        return asyncio.run(_measure(url, events))


async def _measure(url: str, events: int) -> list[Row]:
    database = Database(url)
    try:
        await Prices(database).publish(shipped("demo"), "bench", _MARCH)
        await Partitions(database).make_ahead(_MARCH)
        tenant = await _tenant(database, events)
        log = _Log(_Head(TreeHead(1, bytes(32), int(_NOW.timestamp())), _NOW))
        invoicing = Invoicing(database, row_sha256, log, signer(), lag=timedelta(0))
        began = time.perf_counter()
        async with database.transaction(SETTLER) as connection:
            place = Place(log.newest.head.size, log.newest.head.root, log.newest.cut)
            derived = await gather(connection, tenant, place, row_sha256, "events")
        events_s, began = time.perf_counter() - began, time.perf_counter()
        (invoice,) = await invoicing.close(tenant.id, _NOW)
        rollups_s = time.perf_counter() - began
        assert derived.basis.usage == invoice.document.usage, "not equal to the femto-unit"
    finally:
        await database.close()
    said = f"{events:,} events, {invoice.total_cents / 100:,.2f} USD"
    return [
        Row("invoice from rollups", rollups_s, "s", FROM_ROLLUPS_S, said),
        Row("the same from every event", events_s, "s", FROM_EVENTS_S, "equal to the femto-unit"),
    ]


async def _tenant(database: Database, events: int) -> Tenant:
    """A postpaid tenant with so many events in March, and their rollups."""
    tenancy = Tenancy(database, secrets.token_bytes(32))
    tenant = await tenancy.create_tenant("bench", at=_MARCH, billing_mode="postpaid")
    keys = [(await tenancy.create_key(tenant.id, str(number), _MARCH)).key.id for number in range(KEYS)]
    values = {"tenant": tenant.id, "keys": keys, "key_count": KEYS, "model": MODEL, "events": events}
    values["row"] = next(row.id for row in shipped("demo").rows if row.model == MODEL)
    for first in range(0, events, CHUNK):
        async with database.transaction(SETTLER) as connection:
            chunk = {**values, "first": first, "last": min(first + CHUNK, events) - 1}
            await connection.execute(_EVENTS, chunk)
    async with database.transaction(OWNER) as connection:
        await connection.execute(text("SET LOCAL statement_timeout = 0"))
        await connection.execute(text("ANALYZE usage_event"))
        # All at once: the job would look at each hour between then and now.
        now = (await connection.execute(text("SELECT now()"))).scalar_one()
    for day in range(_DAYS):
        slots = [_MARCH + timedelta(days=day) + SLOT * slot for slot in range(96)]
        async with database.transaction(SETTLER) as connection:
            await add_up(connection, slots, now)
    async with database.transaction(SETTLER) as connection:
        await connection.execute(text("UPDATE rollup_watermark SET recorded_before = :now"), {"now": now})
    return tenant
