"""A gateway over real Postgres and Valkey, served by uvicorn; its engine is doubled at the process border."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
import uvicorn
from litestar import Litestar

from billing.db.transaction import Database
from billing.ledger.balance import BalanceVersion
from billing.ledger.credit import Grant
from billing.ledger.service import Ledger
from billing.money import Femto
from billing.pricing.book import PriceBook, PriceRow
from billing.pricing.rates import Rates
from billing.pricing.service import Prices
from billing.reports.service import Reports, UsageFilter
from billing.reports.usage_row import UsageRow
from billing.settlement.batch import Settlement
from billing.tenancy.service import Tenancy
from gateway.admission.admit import Admission
from gateway.admission.hold import Held
from gateway.app import Parts, build
from gateway.desk import Desk
from gateway.options import GatewayOptions
from gateway.valkey import Valkey
from tests.deployment import signer
from tests.gateway.doubles import MODEL, CharacterRecipe, ScriptedEngine

EPOCH = datetime(2025, 1, 1, tzinfo=UTC)
RATES = Rates(hit=14_000, miss=140_000, output=280_000)
ROW = PriceRow(model=MODEL, currency="USD", effective_from=EPOCH, instant="admitted", standard=RATES)
CREDIT = Femto(10**15)
PEPPER = b"p" * 32
SIGNER = signer()
OPTIONS = GatewayOptions(
    body_bytes_max=100_000,
    first_event_wait_s=1.0,  # a busy machine takes its time
    heartbeat_interval_s=0.05,
    drain_s=0.2,
    request_deadline_s=30,
)


@pytest.fixture
async def valkey(valkey_url: str) -> AsyncIterator[Valkey]:
    connected = Valkey.connect(valkey_url)
    yield connected
    await connected.close()


async def until(holds: Callable[[], Awaitable[bool]], timeout_s: float = 5.0) -> None:
    """Wait for what another task will bring about."""
    async with asyncio.timeout(timeout_s):
        while not await holds():
            await asyncio.sleep(0.005)


@dataclass
class House:
    """One gateway with a funded tenant and its key, and what tests look at."""

    parts: Parts
    engine: ScriptedEngine
    tenant_id: str
    key: str
    key_id: str
    url: str = ""
    app: Litestar = field(init=False)
    server: uvicorn.Server = field(init=False)
    serving: "asyncio.Task[None]" = field(init=False)
    session: aiohttp.ClientSession = field(init=False)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    async def stop(self) -> None:
        """Stop serving, as SIGTERM does."""
        self.server.should_exit = True
        await self.serving

    @property
    def desk(self) -> Desk:
        desk: Desk = self.app.state.desk
        return desk

    @property
    def admission(self) -> Admission:
        return Admission(self.parts.valkey)

    def chat(self, **body: Any) -> Any:
        """A request in flight: use as `async with`."""
        document = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **body}
        return self.session.post(f"{self.url}/v1/chat/completions", json=document, headers=self.headers)

    async def rows(self) -> list[UsageRow]:
        return await Reports(self.parts.database).usage(UsageFilter(tenant_id=self.tenant_id))

    async def held(self) -> Held:
        return await self.admission.held(self.tenant_id)

    async def balance(self) -> Femto:
        return (await self.parts.ledger.balance(self.tenant_id)).total

    async def spend(self, leaving: int) -> None:
        """Make the projected balance another one, as if the rest had been charged."""
        rows = await self.held()
        await self.admission.project(BalanceVersion(self.tenant_id, Femto(leaving), rows.version + 1))

    async def settled(self, count: int = 1) -> list[UsageRow]:
        """Wait until so many events exist and nothing is held any more."""

        async def quiet() -> bool:
            return len(await self.rows()) >= count and not (await self.held()).holds

        await until(quiet)
        return await self.rows()

    async def nothing_happened(self) -> bool:
        """No hold, no event, no charge."""
        rows = await self.held()
        faults = (
            await self.admission.check_integrity(self.tenant_id) + await self.parts.ledger.check_integrity()
        )
        unheld = not rows.holds and rows.held == 0
        return unheld and not await self.rows() and await self.balance() == CREDIT and not faults


async def furnish(database_url: str, valkey_url: str, options: GatewayOptions = OPTIONS) -> House:
    database = Database(database_url)
    tenancy, prices, ledger = Tenancy(database, PEPPER), Prices(database), Ledger(database)
    await prices.publish(PriceBook((ROW,)), "test", EPOCH)
    tenant = await tenancy.create_tenant(f"tenant-{secrets.token_hex(4)}", at=EPOCH)
    issued = await tenancy.create_key(tenant.id, "test", EPOCH)
    await ledger.grant(tenant.id, Grant(CREDIT, "granted", "test", "test"), EPOCH)
    engine = ScriptedEngine()
    parts = Parts(
        options=options,
        database=database,
        tenancy=tenancy,
        prices=prices,
        ledger=ledger,
        settlement=Settlement(database),
        valkey=Valkey.connect(valkey_url),
        engine=engine,  # type: ignore[arg-type]  # a double of the same surface
        recipe=CharacterRecipe(),
        answer_secret=PEPPER,
        deployment_ring=SIGNER.ring.to_text(),
    )
    return House(parts, engine, tenant.id, issued.secret, issued.key.id)


@asynccontextmanager
async def served(
    house: House, graceful_s: float = 5.0, around: Callable[[Any], Any] = lambda app: app
) -> AsyncIterator[House]:
    """Serve the house on a loopback port by uvicorn in this loop, so that disconnects are real.

    ``around`` may wrap the application in another one.
    """
    house.app = build(house.parts)
    config = uvicorn.Config(
        around(house.app),
        host="127.0.0.1",
        port=0,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=graceful_s,
    )
    house.server = uvicorn.Server(config)
    house.serving = asyncio.create_task(house.server.serve())
    try:
        async with asyncio.timeout(10):
            while not house.server.started:
                assert not house.serving.done(), house.serving.exception()
                await asyncio.sleep(0.005)
        port = house.server.servers[0].sockets[0].getsockname()[1]
        house.url = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession() as house.session:
            yield house
    finally:
        await house.stop()


@pytest.fixture
async def house(database_url: str, valkey_url: str) -> AsyncIterator[House]:
    async with served(await furnish(database_url, valkey_url)) as house:
        yield house


@pytest.fixture
async def impatient_house(database_url: str, valkey_url: str) -> AsyncIterator[House]:
    """A house whose requests may take half a second and whose channels hold two frames."""
    options = replace(OPTIONS, request_deadline_s=0.5, channel_frames_max=2)
    async with served(await furnish(database_url, valkey_url, options)) as house:
        yield house
