"""A billed house: one tenant with a key, and the demo prices published."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from billing.db.transaction import Database
from billing.ledger.credit import Grant
from billing.ledger.service import Ledger
from billing.money import femto_of
from billing.pricing.book import PriceBook
from billing.pricing.rating import rate
from billing.pricing.service import Prices
from billing.pricing.toml import shipped
from billing.receipts.log.sequencer import Pace
from billing.receipts.memo import Memo
from billing.reports.service import Reports
from billing.reports.usage_row import UsageFilter
from billing.request_id import mint
from billing.settlement.batch import Settlement
from billing.settlement.event import UsageEvent
from billing.tenancy.service import Tenancy
from billing.usage import TokenUsage
from engine.proof.certificate import DeploymentKey
from engine.proof.coverage import Attempt
from engine.proof.ring import DeploymentRing, RingSigner
from tests.attested import Signed, prefill

NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
MODEL = "smollm2-135m-instruct"
CHARGE = 1024 * 14_000_000 + 176 * 140_000_000 + 300 * 280_000_000
TEN = femto_of("10")
AT_ONCE = Pace(late=timedelta(0), certificate_late=timedelta(0))


@dataclass(frozen=True)
class House:
    """Services over the module's database, and a tenant of its own for each test."""

    database: Database
    tenancy: Tenancy
    prices: Prices
    ledger: Ledger
    book: PriceBook
    tenant_id: str
    key_id: str

    def event(self, number: int = 0, *, output: int = 300, at: datetime = NOON) -> UsageEvent:
        """A request of 1,200 prompt tokens, 1,024 of them from the cache."""
        usage = TokenUsage(cache_hit=1024, cache_owed=0, cache_write=0, cache_miss=176, output=output)
        request_id = self.request_id(number)
        memo = Memo(self.tenant_id, self.key_id, MODEL, "chat", "").to_text()
        return UsageEvent(
            request_id=request_id,
            tenant_id=self.tenant_id,
            key_id=self.key_id,
            model=MODEL,
            status="completed",
            admitted_at=at,
            rated_at=at,
            usage=usage,
            reasoning_tokens=0,
            charge=rate(self.book, MODEL, "USD", usage, at),
            traffic_class="chat",
            attempts=(Attempt(0, "prefill", "p1", 0, 0), Attempt(1, "decode", "d1", 0, output)),
            attestations=(Signed(prefill(request_id, prompt_tokens=1200, hit_tokens=1024, memo=memo)),),
        )

    def request_id(self, number: int) -> UUID:
        """Always the same for this tenant and number."""
        return mint(NOON, bytes.fromhex(self.tenant_id[4:20]) + number.to_bytes(2, "big"))

    async def other_tenant(self) -> "House":
        """The same house, seen by somebody else."""
        tenant = await self.tenancy.create_tenant(f"t-{uuid4()}", at=NOON)
        issued = await self.tenancy.create_key(tenant.id, "first", NOON)
        return replace(self, tenant_id=tenant.id, key_id=issued.key.id)

    async def topped_up(self, amount: str) -> None:
        """Give the tenant paid credit."""
        await self.ledger.grant(self.tenant_id, Grant(femto_of(amount), "topped_up", "paid", "test"), NOON)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.close()


@pytest.fixture
async def house(database: Database) -> House:
    tenancy, prices, book = Tenancy(database, b"pepper"), Prices(database), shipped("demo")
    await prices.publish(book, "test", NOON)
    empty = House(database, tenancy, prices, Ledger(database), book, "", "")
    return await empty.other_tenant()


@pytest.fixture
async def settlement(house: House) -> AsyncIterator[Settlement]:
    settlement = Settlement(house.database)
    await settlement.start()
    yield settlement
    await settlement.close()


def signer() -> RingSigner:
    """Of a new deployment."""
    key = DeploymentKey.generate()
    return RingSigner(DeploymentRing.of(key.public), key.private)


async def rows_of(house: House) -> list[Any]:
    return await Reports(house.database).usage(UsageFilter(tenant_id=house.tenant_id))


async def assert_charged(house: House, requests: int, credit: int = TEN) -> None:
    """One event a request, the balance their sum below the credit, and a ledger that adds up."""
    rows = await rows_of(house)
    assert len(rows) == requests
    assert sum(row.charge for row in rows) == requests * CHARGE
    assert (await house.ledger.balance(house.tenant_id)).total == credit - requests * CHARGE
    assert await house.ledger.check_integrity() == []
