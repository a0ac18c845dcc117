"""Settlement of ended requests: durable events a second and how long each caller waits for its own.

All of it on one Postgres with fsync on, with postings, attempts and signed attestations, which were
made before the clock starts. Beside it, in turn on the same database, a transaction for each request.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Final

import uvloop
from rich.console import Console

from billing.db.transaction import Database
from billing.ledger.service import Ledger
from billing.settlement.batch import Settlement
from billing.settlement.event import UsageEvent
from billing.settlement.posting import post
from tests.bench.books import Payer, Requests, deadlocks, durable_postgres, fill_log, furnish
from tests.bench.row import Row
from tests.bench.timing import quantile

CONCURRENT: Final = 512
ROUNDS: Final = 3
ROUND_EVENTS: Final = 30_000
ALONE_EVENTS: Final = 1_536
CONNECTIONS: Final = 16  # of those who commit each request alone; more are slower on two cores
OPEN_RATE: Final = 5_000
OPEN_S: Final = 6
FLUSHERS: Final = 4
FLUSHERS_S: Final = 60.0

EVENTS_PER_S_MIN: Final = 15_000.0
CLOSED_P99_MS_MAX: Final = 80.0
OPEN_P99_MS_MAX: Final = 25.0
RATIO_MIN: Final = 5.0


@dataclass(frozen=True, slots=True)
class Load:
    """What callers saw: events a second of wall clock, and the wait of each."""

    events_per_s: float
    waits_ms: list[float]

    def __str__(self) -> str:
        p50, p99 = (quantile(self.waits_ms, share) for share in (0.5, 0.99))
        return f"{self.events_per_s:,.0f} events/s, p50 {p50:.1f} ms, p99 {p99:.1f} ms"


def _freeze() -> None:
    """Keep what was made before the clock starts out of the collector's way: no gateway holds so much."""
    gc.collect()
    gc.freeze()


Settle = Callable[[UsageEvent], Awaitable[object]]


async def closed_loop(settle: Settle, events: Sequence[UsageEvent]) -> Load:
    """As many callers as `CONCURRENT`, each settling one event after the other."""
    waiting = iter(events)
    waits_ms: list[float] = []

    async def caller() -> None:
        for event in waiting:
            asked_s = time.perf_counter()
            await settle(event)
            waits_ms.append((time.perf_counter() - asked_s) * 1000)

    _freeze()
    began_s = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CONCURRENT)))
    return Load(len(events) / (time.perf_counter() - began_s), waits_ms)


async def open_loop(settle: Settle, events: Sequence[UsageEvent]) -> Load:
    """Events that arrive `OPEN_RATE` a second whatever becomes of those before; waits count from then."""
    waits_ms: list[float] = []

    async def caller(event: UsageEvent, due_s: float) -> None:
        await settle(event)
        waits_ms.append((time.perf_counter() - due_s) * 1000)

    _freeze()
    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number, event in enumerate(events):
            due_s = began_s + number / OPEN_RATE
            while due_s > time.perf_counter():
                await asyncio.sleep(0.001)
            group.create_task(caller(event, due_s))
    return Load(len(events) / (time.perf_counter() - began_s), waits_ms)


async def _throughput(url: str, payers: Sequence[Payer]) -> list[Row]:
    requests = Requests(payers)
    together, alone = Database(url), Database(url, CONNECTIONS, pool_timeout_s=60)
    settlement = Settlement(together)
    await settlement.start()
    await closed_loop(settlement.settle, requests.take(CONCURRENT * 4))  # connects, prepares statements
    batched: list[Load] = []
    single: list[Load] = []
    for number in range(ROUNDS):
        many, few = requests.take(ROUND_EVENTS), requests.take(ALONE_EVENTS)
        batched.append(await closed_loop(settlement.settle, many))
        single.append(await closed_loop(lambda event: post(alone, [event]), few))
        Console(stderr=True).print(f"settlement: round {number + 1}: {batched[-1]}; alone {single[-1]}")
    opened = await open_loop(settlement.settle, requests.take(OPEN_RATE * OPEN_S))
    await settlement.close()
    for database in (together, alone):
        await database.close()
    return rows(batched, single, opened)


def rows(batched: Sequence[Load], single: Sequence[Load], opened: Load) -> list[Row]:
    """Medians over the rounds; the ratio is taken round by round."""
    ratios = [ours.events_per_s / theirs.events_per_s for ours, theirs in zip(batched, single, strict=True)]
    of_rounds = f"of {len(batched)} rounds with {CONCURRENT} callers"
    return [
        Row(
            "settled, durable",
            median(load.events_per_s for load in batched),
            "/s",
            floor=EVENTS_PER_S_MIN,
            remark=f"{of_rounds}, {min(load.events_per_s for load in batched):,.0f} at worst",
        ),
        Row(
            "wait for it, p99",
            median(quantile(load.waits_ms, 0.99) for load in batched),
            "ms",
            CLOSED_P99_MS_MAX,
            f"p50 {median(quantile(load.waits_ms, 0.5) for load in batched):.1f} ms",
        ),
        Row(
            "settled with a transaction each",
            median(load.events_per_s for load in single),
            "/s",
            remark=f"over {CONNECTIONS} connections",
        ),
        Row("together : each alone", median(ratios), "ratio", floor=RATIO_MIN, remark=of_rounds),
        Row(
            f"wait at {OPEN_RATE:,} a second, p99",
            quantile(opened.waits_ms, 0.99),
            "ms",
            OPEN_P99_MS_MAX,
            f"p50 {quantile(opened.waits_ms, 0.5):.1f} ms, {opened.events_per_s:,.0f} events/s",
        ),
    ]


def _flush(url: str, payers: list[Payer], seconds: float) -> int:
    """One gateway of several: settle for so many seconds; how many events that were."""
    return uvloop.run(_keep_flushing(url, payers, seconds))


async def _keep_flushing(url: str, payers: list[Payer], seconds: float) -> int:
    requests, database = Requests(payers), Database(url)
    settlement = Settlement(database)
    await settlement.start()
    end_s, settled = time.perf_counter() + seconds, 0
    while time.perf_counter() < end_s:
        events = requests.take(CONCURRENT)
        await closed_loop(settlement.settle, events)
        settled += len(events)
    await settlement.close()
    await database.close()
    return settled


def flushers(url: str, payers: list[Payer], seconds: float) -> list[Row]:
    """Gateways in processes of their own that settle for the same tenants at once."""
    with ProcessPoolExecutor(FLUSHERS) as pool:
        each = list(pool.map(_flush, [url] * FLUSHERS, [payers] * FLUSHERS, [seconds] * FLUSHERS))
    broken = asyncio.run(deadlocks(url))
    remark = f"{sum(each):,} events of the same tenants, signed meanwhile"
    return [Row(f"deadlocks of {FLUSHERS} flushers in {seconds:.0f} s", broken, "", 0, remark)]


def measure(flushers_s: float = FLUSHERS_S) -> list[Row]:
    """On a database of its own, whose books are looked at afterwards."""
    with durable_postgres() as url:
        payers = uvloop.run(_furnished(url))
        measured = [*uvloop.run(_throughput(url, payers)), *flushers(url, payers, flushers_s)]
        return [*measured, Row("faults in the books afterwards", uvloop.run(_faults(url)), "", 0)]


async def _furnished(url: str) -> list[Payer]:
    database = Database(url)
    payers = await furnish(database)
    await fill_log(url)
    await database.close()
    return payers


async def _faults(url: str) -> int:
    database = Database(url)
    faults = await Ledger(database).check_integrity()
    await database.close()
    for fault in faults[:10]:
        Console(stderr=True).print(f"settlement: {fault}")
    return len(faults)
