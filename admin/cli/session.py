"""What commands about the books work with: services on the running stack's database, and its Valkey."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from admin.settings import Settings
from admin.stack.supervisor import connect
from billing.alerts.service import Alerts
from billing.audit.service import Audit
from billing.catalog.service import Aliasing
from billing.db.transaction import Database
from billing.ledger.service import Ledger
from billing.lifecycle.service import Lifecycle
from billing.notify.webhooks import Webhooks
from billing.pricing.service import Prices
from billing.receipts.service import Receipts
from billing.reports.service import Reports
from billing.tenancy.projects.service import Projects
from billing.tenancy.rules.service import Rules
from billing.tenancy.service import Tenancy
from billing.tenancy.users.service import Users

if TYPE_CHECKING:
    from gateway.valkey import Valkey

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Books:
    """The services of one running stack."""

    tenancy: Tenancy
    projects: Projects
    users: Users
    rules: Rules
    audit: Audit
    prices: Prices
    aliasing: Aliasing
    ledger: Ledger
    reports: Reports
    receipts: Receipts
    webhooks: Webhooks
    alerts: Alerts
    lifecycle: Lifecycle
    settings: Settings


@asynccontextmanager
async def books(data_dir: Path) -> AsyncIterator[Books]:
    """Open the books of the stack in `data_dir` for one command; connections are closed afterwards."""
    settings = connect(data_dir)
    database = Database(settings.database_url, pool_size=2)
    try:
        yield Books(
            tenancy=Tenancy(database, settings.key_pepper),
            projects=Projects(database),
            users=Users(database),
            rules=Rules(database),
            audit=Audit(database),
            prices=Prices(database),
            aliasing=Aliasing(database),
            ledger=Ledger(database),
            reports=Reports(database),
            receipts=Receipts(database),
            webhooks=_webhooks(database, settings),
            alerts=Alerts(database),
            lifecycle=Lifecycle(database),
            settings=settings,
        )
    finally:
        await database.close()


def _webhooks(database: Database, settings: Settings) -> Webhooks:
    from billing.tenancy.api_key import network_of
    from gateway.destinations import url_fault
    from gateway.vault import WEBHOOKS, Vault

    allowed = tuple(map(network_of, settings.private_destinations))
    return Webhooks(database, Vault(settings.key_pepper, WEBHOOKS), partial(url_fault, allowed=allowed))


@asynccontextmanager
async def valkey(settings: Settings) -> AsyncIterator["Valkey"]:
    """The stack's Valkey for one command."""
    from gateway.valkey import Valkey

    client = Valkey.connect(settings.valkey_url)
    try:
        yield client
    finally:
        await client.close()


async def tell_gateways(settings: Settings, owner_id: str) -> None:
    """Say that a key, project or tenant has changed. Gateways that are not told ask within two seconds."""
    from gateway.refusal import ValkeyUnavailable
    from gateway.snapshot import announce_change

    async with valkey(settings) as client:
        with suppress(ValkeyUnavailable):
            await announce_change(client, owner_id)


def run(work: Coroutine[object, object, Result]) -> Result:
    """Run one command's work on a loop of its own."""
    return asyncio.run(work)
