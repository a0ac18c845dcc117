"""A durable Postgres with funded tenants, and requests that have ended and wait to be settled."""

import asyncio
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import asyncpg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from admin.stack import postgres, process
from billing.db import migrate
from billing.db.transaction import Database
from billing.ledger.credit import Grant
from billing.ledger.service import Ledger
from billing.money import femto_of
from billing.pricing.book import PriceBook
from billing.pricing.rating import rate
from billing.pricing.service import Prices
from billing.pricing.toml import shipped
from billing.receipts.memo import Memo
from billing.request_id import RANDOM_BYTES, mint
from billing.settlement.event import UsageEvent
from billing.tenancy.service import Tenancy
from billing.usage import TokenUsage
from engine.proof.attestation import NONCE_BYTES, PrefillAttestation, commitment
from engine.proof.coverage import Attempt
from tests.attested import prefill

TENANTS: Final = 50
LOG_MB: Final = 500  # some 3 kB for each event that is measured before the flushers
MODEL: Final = "smollm2-135m-instruct"
PROMPT_TOKENS, HIT_TOKENS, OUTPUT_TOKENS = 200, 128, 300

_NOON: Final = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Proof:
    """An attestation and the text that its worker signed (`billing.receipts.receipt.Attested`)."""

    attestation: PrefillAttestation
    document: str


@dataclass(frozen=True, slots=True)
class Payer:
    """A tenant and its key."""

    tenant_id: str
    key_id: str


@contextmanager
def durable_postgres() -> Iterator[str]:
    """A fresh, migrated database of a server with the settings of `kvitto up`: fsync and all."""
    folder = Path(tempfile.mkdtemp(prefix="kv-", dir="/tmp"))
    folder.chmod(0o711)
    server = postgres.locate(folder, folder / "p")
    passwords = postgres.PostgresPasswords.generate()
    asyncio.run(server.prepare(passwords))
    with (folder / "postgres.log").open("wb") as log:
        child = process.spawn(server.command(), log)
    try:
        ready = process.until(lambda: server.ready(child.pid) or child.poll() is not None, 60.0)
        assert asyncio.run(ready), (folder / "postgres.log").read_text()
        url = server.url(passwords.superuser, role=postgres.SUPERUSER)
        migrate.upgrade(url)
        yield url
    finally:
        asyncio.run(process.stop(child, signal.SIGINT, 30.0))
        shutil.rmtree(server.data, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


async def furnish(database: Database, tenants: int = TENANTS) -> list[Payer]:
    """Publish the demo prices; tenants with a key, a granted and a topped-up lot each."""
    tenancy, ledger = Tenancy(database, secrets.token_bytes(32)), Ledger(database)
    await Prices(database).publish(shipped("demo"), "bench", _NOON)
    payers = []
    for number in range(tenants):
        tenant = await tenancy.create_tenant(f"tenant {number}", at=_NOON)
        key = (await tenancy.create_key(tenant.id, "first", _NOON)).key
        # The grant lasts for some thousand requests: settling meets the end of a lot, and both balances.
        await ledger.grant(tenant.id, Grant(femto_of("0.2"), "granted", "bench", "bench"), _NOON)
        await ledger.grant(tenant.id, Grant(femto_of("1000"), "topped_up", "bench", "bench"), _NOON)
        payers.append(Payer(tenant.id, key.id))
    return payers


class Requests:
    """Ended requests of some payers in turn, each with the signed attestation of its prefill."""

    def __init__(self, payers: Sequence[Payer]) -> None:
        self._payers = payers
        self._worker_key = Ed25519PrivateKey.generate()
        self._book: PriceBook = shipped("demo")
        self._prompt_ids = range(PROMPT_TOKENS)
        self._made = 0

    def take(self, count: int) -> list[UsageEvent]:
        """Make so many; no two ever have the same id."""
        return [self._one() for _ in range(count)]

    def _one(self) -> UsageEvent:
        payer = self._payers[self._made % len(self._payers)]
        at = _NOON + timedelta(milliseconds=self._made)
        self._made += 1
        request_id = mint(at, secrets.token_bytes(RANDOM_BYTES))
        row = self._book.row(MODEL, "USD", at)
        memo = Memo(payer.tenant_id, payer.key_id, MODEL, "chat", row.id)
        nonce = secrets.token_bytes(NONCE_BYTES)
        said = prefill(
            request_id,
            worker="prefill-0",
            namespace="ab" * 32,
            prompt_tokens=PROMPT_TOKENS,
            hit_tokens=HIT_TOKENS,
            promised_until=int(at.timestamp()) + 604_800,
            prompt_commitment=commitment(nonce, self._prompt_ids),
            cached_prefix_commitment=commitment(nonce, self._prompt_ids[:HIT_TOKENS]),
            memo=memo.to_text(),
            attested_at_ns=int(at.timestamp()) * 10**9,
            output_to=1,
        )
        usage = TokenUsage.of(said, OUTPUT_TOKENS)
        return UsageEvent(
            request_id=request_id,
            tenant_id=payer.tenant_id,
            key_id=payer.key_id,
            model=MODEL,
            status="completed",
            admitted_at=at,
            rated_at=at,
            usage=usage,
            reasoning_tokens=0,
            charge=rate(self._book, MODEL, "USD", usage, at),
            traffic_class="chat",
            attempts=(
                Attempt(0, "prefill", "prefill-0", 0, 1),
                Attempt(1, "decode", "decode-0", 1, OUTPUT_TOKENS),
            ),
            attestations=(Proof(said, said.sign(self._worker_key)),),
        )


async def fill_log(url: str) -> None:
    """Leave the server as much of its log to write over as the bench writes: one that has run has it.

    A fresh one makes a segment every 16 MB, filled with zeros, while everybody waits.
    """
    async with _connected(url) as connection:
        for _ in range(LOG_MB):
            await connection.execute("SELECT pg_logical_emit_message(false, 'bench', repeat('x', 1 << 20))")
        await connection.execute("CHECKPOINT")


async def deadlocks(url: str) -> int:
    """How many the server has broken in this database."""
    async with _connected(url) as connection:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        return int(await connection.fetchval(query))


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        yield connection
    finally:
        await connection.close()
