"""The receipt log at a million leaves: how fast receipts are sealed, proved, and handed out in bulk.

The million is made in the database, with hashes of nothing; what is sealed, proved and handed out is real.
"""

import time
from collections.abc import Sequence
from datetime import timedelta
from statistics import median
from typing import Final

import uvloop
from rich.console import Console

from admin import clock
from billing.db.access import OWNER
from billing.db.transaction import Database, driver_of
from billing.receipts.log.sequencer import Pace
from billing.receipts.log.service import ReceiptLog
from billing.settlement.batch import Settlement
from billing.settlement.event import UsageEvent
from engine.proof.certificate import DeploymentKey
from engine.proof.ring import DeploymentRing, RingSigner
from tests.bench.books import Payer, Requests, durable_postgres, furnish
from tests.bench.row import Row
from tests.bench.settlement import closed_loop
from tests.bench.timing import quantile

LEAVES: Final = 1_000_000
EVENTS: Final = 50_000
PROOFS: Final = 2_000
ROUNDS: Final = 3

PROOF_MS_MAX: Final = 1.0
PATHS_PER_S_MIN: Final = 20_000.0

# Leaves of nobody, and the nodes over them level by level.
PADDING: Final = (
    """INSERT INTO receipt_leaf
        SELECT i, gen_random_uuid(), 'nobody', now(), hash, hash, '{}'
        FROM generate_series(0, $1::bigint - 1) AS i, LATERAL (SELECT sha256(int8send(i)) AS hash) AS made""",
    "INSERT INTO tree_node SELECT 0, leaf_index, leaf FROM receipt_leaf WHERE leaf_index < $1::bigint",
)
OVER: Final = r"""
    INSERT INTO tree_node
    SELECT $1::smallint + 1, l.position / 2, sha256('\x01'::bytea || l.hash || r.hash)
    FROM tree_node AS l JOIN tree_node AS r ON r.level = l.level AND r.position = l.position + 1
    WHERE l.level = $1 AND l.position % 2 = 0
"""


async def pad(database: Database, leaves: int) -> None:
    """A log of so many leaves of nobody."""
    async with database.transaction(OWNER) as connection:
        driver = driver_of(connection)
        await driver.execute("SET LOCAL statement_timeout = 0")
        for statement in PADDING:
            await driver.execute(statement, leaves)
        for level in range(leaves.bit_length() - 1):
            await driver.execute(OVER, level)
        await driver.execute("UPDATE log_state SET size = $1", leaves)


async def _sealed(log: ReceiptLog, settlement: Settlement, made: list[UsageEvent]) -> float:
    """Receipts sealed a second, of events that were just settled."""
    await closed_loop(settlement.settle, made)
    began_s = time.perf_counter()
    await log.seal(clock.now())
    return len(made) / (time.perf_counter() - began_s)


async def _proved_ms(log: ReceiptLog, event: UsageEvent) -> float:
    began_s = time.perf_counter()
    await log.inclusion(event.request_id, event.tenant_id)
    return (time.perf_counter() - began_s) * 1000


async def _in_bulk(log: ReceiptLog, payers: list[Payer]) -> float:
    """Receipts a second, all of each tenant after the other's."""
    began_s, found = time.perf_counter(), 0
    for payer in payers:
        async for _ in log.receipts(payer.tenant_id):
            found += 1
    return found / (time.perf_counter() - began_s)


async def _measured(url: str, leaves: int, events: int) -> list[Row]:
    database, key = Database(url), DeploymentKey.generate()
    payers = await furnish(database)
    await pad(database, leaves)
    pace = Pace(late=timedelta(0), certificate_late=timedelta(0))
    log = ReceiptLog(database, RingSigner(DeploymentRing.of(key.public), key.private), pace)
    requests, settlement = Requests(payers), Settlement(database)
    await settlement.start()
    sealed = []
    for number in range(ROUNDS):
        made = requests.take(events // ROUNDS)
        sealed.append(await _sealed(log, settlement, made))
        Console(stderr=True).print(f"log: round {number + 1}: {sealed[-1]:,.0f} receipts/s sealed")
    await settlement.close()
    async with database.transaction(OWNER) as connection:  # as the server does itself, some time later
        await driver_of(connection).execute("ANALYZE receipt_leaf, tree_node")
    proofs_ms = [await _proved_ms(log, event) for event in made[:PROOFS]]
    in_bulk = [await _in_bulk(log, payers) for _ in range(ROUNDS)]
    await database.close()
    return rows(sealed, proofs_ms, in_bulk)


def rows(sealed: Sequence[float], proofs_ms: Sequence[float], in_bulk: Sequence[float]) -> list[Row]:
    """Medians over rounds and proofs; each proof is asked for alone, one after the other."""
    return [
        Row("receipts sealed", median(sealed), "/s", remark=f"{min(sealed):,.0f} at worst"),
        Row(
            "proof of inclusion",
            median(proofs_ms),
            "ms",
            PROOF_MS_MAX,
            f"p99 {quantile(proofs_ms, 0.99):.1f} ms, at {LEAVES:,} leaves",
        ),
        Row("receipts with their paths, in bulk", median(in_bulk), "/s", floor=PATHS_PER_S_MIN),
    ]


def measure(leaves: int = LEAVES, events: int = EVENTS) -> list[Row]:
    """On a database of its own."""
    with durable_postgres() as url:
        return uvloop.run(_measured(url, leaves, events))
