"""A house that bills by the month: one model at a cent a token, and a log that seals whatever is recorded."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from billing.db.access import OWNER
from billing.db.transaction import Database
from billing.interval import SLOT, Interval
from billing.invoicing.agreements.service import Agreements
from billing.invoicing.invoice import Invoice
from billing.invoicing.service import Invoicing
from billing.invoicing.settling import Deliberate, Settling
from billing.invoicing.terms import Terms
from billing.ledger.service import Ledger
from billing.money import FEMTO_PER_CENT
from billing.pricing.book import PriceBook, PriceRow
from billing.pricing.rates import Rates
from billing.pricing.rating import rate
from billing.pricing.service import Prices
from billing.receipts.head import TreeHead
from billing.reports.rollup import Rollups
from billing.request_id import mint
from billing.settlement.event import UsageEvent
from billing.settlement.posting import post
from billing.tenancy.service import Tenancy
from billing.usage import TokenUsage
from engine.proof.coverage import Attempt
from engine.proof.ring import RingSigner
from tests import deployment

FEBRUARY, MARCH, APRIL, MAY, JUNE = (datetime(2025, month, 1, tzinfo=UTC) for month in range(2, 7))
MID_MARCH = datetime(2025, 3, 15, 12, tzinfo=UTC)
NOW = datetime(2025, 6, 10, tzinfo=UTC)  # of who closes; Postgres has its own, which is later
SECOND = timedelta(seconds=1)
CENT = FEMTO_PER_CENT

BOOK = PriceBook(
    (
        PriceRow("m", "USD", datetime(2025, 1, 1, tzinfo=UTC), "admitted", Rates(CENT // 10, CENT, CENT)),
        PriceRow("fine", "USD", datetime(2025, 1, 1, tzinfo=UTC), "admitted", Rates(1, 1_234_567, 7)),
    )
)


def digest(row: PriceRow) -> str:
    return hashlib.sha256(repr(row).encode()).hexdigest()


@dataclass(frozen=True)
class SealedHere:
    head: TreeHead
    cut: datetime


@dataclass
class CountingLog:
    """Implements `billing.invoicing.service.HeadSource`: a leaf for each event recorded before ``cut``."""

    database: Database
    cut: datetime = NOW

    async def close(self, now: datetime) -> SealedHere:
        statement = text("SELECT count(*) FROM usage_event WHERE recorded_at < :cut")
        async with self.database.transaction(OWNER) as connection:
            size = (await connection.execute(statement, {"cut": self.cut})).scalar_one()
        return SealedHere(
            TreeHead(size, hashlib.sha256(str(size).encode()).digest(), int(now.timestamp())), self.cut
        )


@dataclass(frozen=True)
class Firm:
    """Services, and a tenant that is billed by the month."""

    database: Database
    log: CountingLog
    signer: RingSigner
    tenancy: Tenancy
    ledger: Ledger
    agreements: Agreements
    invoicing: Invoicing
    settling: Settling
    tenant_id: str
    key_id: str

    async def used(self, tokens: int, at: datetime = MID_MARCH, **fields: Any) -> UsageEvent:
        """Settle a request of so many prompt tokens, one of them output, recorded a second after ``at``."""
        event = self.event(tokens, at, **fields)
        await post(self.database, [event])
        await self.recorded(event, at + SECOND)
        return event

    def event(
        self, tokens: int, at: datetime, *, model: str = "m", hit: int = 0, owed: int = 0
    ) -> UsageEvent:
        usage = TokenUsage(hit, owed, 0, tokens, 0) if tokens else TokenUsage.none()
        return UsageEvent(
            request_id=mint(at, secrets.token_bytes(10)),
            tenant_id=self.tenant_id,
            key_id=self.key_id,
            model=model,
            status="completed" if tokens else "failed",
            admitted_at=at,
            rated_at=at,
            usage=usage,
            reasoning_tokens=0,
            charge=rate(BOOK, model, "USD", usage, at),
            traffic_class="chat",
            attempts=(Attempt(0, "both", "w", 0, 0),) if tokens else (),
        )

    async def recorded(self, event: UsageEvent, at: datetime) -> None:
        """Say that an event was recorded at another instant than now: tests do not wait for months."""
        statement = text("UPDATE usage_event SET recorded_at = :at WHERE request_id = :id")
        async with self.database.transaction(OWNER) as connection:
            await connection.execute(statement, {"at": at, "id": event.request_id})
        slot = Interval(event.rated_at - SLOT, event.rated_at).slots.until
        await Rollups(self.database, timedelta(0)).rebuild([slot])

    async def spoil(self, event: UsageEvent) -> None:
        """Let an event cost more than its price."""
        statement = text("UPDATE usage_event SET charge = charge + 1 WHERE request_id = :id")
        async with self.database.transaction(OWNER) as connection:
            await connection.execute(statement, {"id": event.request_id})
        await self.recorded(event, event.rated_at + SECOND)

    async def agreed(self, effective_from: date = date(2025, 2, 1), **terms: Any) -> None:
        await self.agreements.agree(self.tenant_id, effective_from, Terms(**terms), NOW, actor="test")

    async def close(self, cut: datetime = NOW, **options: Any) -> list[Invoice]:
        """Close what is over by a head that was cut at an instant."""
        self.log.cut = cut
        return await self.invoicing.close(self.tenant_id, cut, **options)

    async def sound(self) -> None:
        """Assert that the ledger adds up, and the receivable is what documents and usage say."""
        assert await self.ledger.check_integrity() == []
        async with self.database.transaction(OWNER) as connection:
            held = await connection.execute(text(RECEIVABLE), {"tenant": self.tenant_id})
            says, is_ = held.one()
        assert says == is_

    def why(self, reason: str = "test", at: datetime = NOW) -> Deliberate:
        return Deliberate(reason, "test", at)


# Open documents, usage that none has taken in, what is carried, less what is paid on account or corrected.
RECEIVABLE = """
    WITH documents AS (SELECT * FROM invoice WHERE tenant_id = :tenant),
    charged AS (
        SELECT sum(amount) AS femto FROM ledger_entry
        JOIN ledger_transaction AS moved ON moved.id = transaction_id
        WHERE moved.tenant_id = :tenant AND account = 'receivable'
            AND kind IN ('charge', 'credit', 'write_off', 'correction')
    ),
    used AS (
        SELECT sum(cents) AS cents FROM invoice_line JOIN documents USING (number)
        WHERE documents.kind = 'invoice'
            AND invoice_line.kind IN ('usage', 'late', 'prepaid', 'correction')
    ),
    open AS (
        SELECT sum(due_cents - paid_cents - credited_cents) AS cents FROM documents
        WHERE state <> 'uncollectible'
    )
    SELECT coalesce((SELECT receivable FROM balance WHERE tenant_id = :tenant), 0),
        coalesce((SELECT femto FROM charged), 0) - coalesce((SELECT sum(on_account) FROM documents), 0)
        + 10000000000000 * coalesce((SELECT cents FROM used), 0)
        - 10000000000000 * coalesce((SELECT cents FROM open), 0)
"""


@pytest.fixture
async def firm(database: Database) -> Firm:
    await Prices(database).publish(BOOK, "test", datetime(2025, 1, 1, tzinfo=UTC))
    async with database.transaction(OWNER) as connection:
        # Nothing was recorded yet, so rollups hold all of it. They would look at each hour since.
        await connection.execute(text("UPDATE rollup_watermark SET recorded_before = now()"))
    return await firm_of(database)


async def firm_of(database: Database, mode: Any = "postpaid", tz: str = "UTC") -> Firm:
    """A tenant made in February."""
    log, signer = CountingLog(database), deployment.signer()
    tenancy = Tenancy(database, b"pepper")
    tenant = await tenancy.create_tenant(secrets.token_hex(8), at=FEBRUARY, billing_mode=mode, tz=tz)
    issued = await tenancy.create_key(tenant.id, "first", FEBRUARY)
    return Firm(
        database=database,
        log=log,
        signer=signer,
        tenancy=tenancy,
        ledger=Ledger(database),
        agreements=Agreements(database),
        invoicing=Invoicing(database, digest, log, signer, lag=timedelta(0)),
        settling=Settling(database, signer),
        tenant_id=tenant.id,
        key_id=issued.key.id,
    )
