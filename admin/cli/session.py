"""What commands about the books work with: services on the running stack's database, and its Valkey."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from admin import deployment
from admin.cli.errors import CommandFailed
from admin.settings import Settings
from admin.stack.supervisor import connect
from billing.alerts.service import Alerts
from billing.audit.service import Audit
from billing.catalog.service import Aliasing
from billing.db.transaction import Database
from billing.invoicing.agreements.service import Agreements
from billing.invoicing.customer_bundle import CustomerBundles
from billing.invoicing.service import Invoicing
from billing.invoicing.settling import Settling
from billing.ledger.balance import BalanceVersion
from billing.ledger.service import Ledger
from billing.lifecycle.service import Lifecycle
from billing.notify.webhooks import Webhooks
from billing.payments.invoices import StripeInvoices
from billing.pricing.document import row_sha256
from billing.pricing.service import Prices
from billing.receipts.log.service import ReceiptLog
from billing.receipts.service import Receipts
from billing.reconcile.service import Reconciliation
from billing.reports.export.files.service import ExportFiles
from billing.reports.export.service import Exports
from billing.reports.service import Reports
from billing.tenancy.projects.service import Projects
from billing.tenancy.rules.service import Rules
from billing.tenancy.service import Tenancy
from billing.tenancy.users.service import Users
from engine.proof.ring import DeploymentRing

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
    exports: ExportFiles
    writing: Exports
    receipts: Receipts
    receipt_log: ReceiptLog
    agreements: Agreements
    invoicing: Invoicing
    settling: Settling
    webhooks: Webhooks
    alerts: Alerts
    lifecycle: Lifecycle
    reconciliation: Reconciliation
    settings: Settings


@dataclass(frozen=True, slots=True)
class SigningDesk:
    """What issues documents: only who can read the deployment's key has it."""

    invoicing: Invoicing
    settling: Settling
    bundles: CustomerBundles


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
            exports=ExportFiles(database, settings.exports_folder),
            writing=Exports(database),
            receipts=Receipts(database),
            receipt_log=ReceiptLog(database),
            agreements=Agreements(database),
            invoicing=Invoicing(database, row_sha256),
            settling=Settling(database),
            webhooks=_webhooks(database, settings),
            alerts=Alerts(database),
            lifecycle=Lifecycle(database),
            reconciliation=Reconciliation(database, DeploymentRing.read(settings.deployment_ring)),
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
async def signing(data_dir: Path) -> AsyncIterator[tuple[Books, SigningDesk]]:
    """The books, and what issues documents in the deployment's name."""
    signer = deployment.signer(connect(data_dir))
    async with books(data_dir) as opened:
        database = Database(opened.settings.database_url, pool_size=2)
        log = ReceiptLog(database, signer)
        collector = None if opened.settings.stripe.secret_key is None else StripeInvoices()
        try:
            yield (
                opened,
                SigningDesk(
                    invoicing=Invoicing(database, row_sha256, log, signer, collector=collector),
                    settling=Settling(database, signer),
                    bundles=CustomerBundles(database, log, signer),
                ),
            )
        finally:
            await database.close()


async def show_balance(opened: Books, tenant_id: str, untold: str) -> None:
    """Tell gateways what a tenant can spend; raises CommandFailed (``untold``) where Valkey is away."""
    from gateway.admission.admit import Admission
    from gateway.refusal import ValkeyUnavailable

    present = await opened.ledger.balance(tenant_id)
    async with valkey(opened.settings) as client:
        try:
            await Admission(client).project(BalanceVersion(tenant_id, present.spendable, present.version))
        except ValkeyUnavailable as error:
            raise CommandFailed(untold) from error


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
