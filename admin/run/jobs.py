"""The process of the background jobs."""

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from functools import partial

from admin import clock, deployment, settings
from admin.engine import engine_options
from admin.jobs import Paying, Works, jobs_of
from admin.settings import Settings, write_private
from billing.alerts.service import Alerts
from billing.db.partitions import Partitions
from billing.db.transaction import Database
from billing.invoicing.service import Invoicing
from billing.ledger.service import Ledger
from billing.lifecycle.collection import Dunning
from billing.lifecycle.receivables import InvoicedDebts
from billing.notify.delivery import Deliveries
from billing.payments.invoices import StripeInvoices
from billing.payments.outbox import Outbox
from billing.payments.service import Payments
from billing.pricing.document import row_sha256
from billing.pricing.service import Prices
from billing.queue import Queue
from billing.receipts.log.service import ReceiptLog
from billing.receipts.service import Receipts
from billing.reconcile.service import Reconciliation
from billing.reports.export.files.service import ExportFiles
from billing.reports.rollup import Rollups
from billing.settlement.batch import Settlement
from billing.tenancy.api_key import network_of
from billing.tenancy.service import Tenancy
from engine.api import Journals
from gateway.admission.admit import Admission
from gateway.audit import Audit
from gateway.deliver import HttpSender
from gateway.snapshot import announce_change
from gateway.sweep import SweepBooks, Sweeper
from gateway.telemetry import SweepTelemetry, log, log_to_stderr
from gateway.valkey import Valkey
from gateway.vault import WEBHOOKS, Vault


async def run(known: Settings) -> None:
    """Run all jobs until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:  # closes in reverse, each whatever became of the others
        database = Database(known.database_url, pool_size=4)
        stack.push_async_callback(database.close)
        valkey = Valkey.connect(known.valkey_url)
        stack.push_async_callback(valkey.close)
        settlement = Settlement(database)
        await settlement.start()
        stack.push_async_callback(settlement.close)
        journals = Journals(engine_options(known))
        await journals.open()
        stack.push_async_callback(journals.close)
        sender = HttpSender(tuple(map(network_of, known.private_destinations)))
        stack.push_async_callback(sender.close)
        ready = known.data_dir / "run" / "jobs.ready"
        write_private(ready, str(os.getpid()).encode())
        log.info("jobs_run")
        ledger, receipts, telemetry = Ledger(database), Receipts(database), SweepTelemetry()
        tenancy = Tenancy(database, known.key_pepper)
        books = SweepBooks(tenancy, Prices(database), ledger, settlement, receipts)
        signer = deployment.signer(known)
        receipt_log = ReceiptLog(database, signer)
        collector = None if known.stripe.secret_key is None else StripeInvoices()
        works = Works(
            sweeper=Sweeper(valkey, books, journals, telemetry),
            audit=Audit(valkey, receipts, telemetry),
            ledger=ledger,
            settlement=settlement,
            admission=Admission(valkey),
            rollups=Rollups(database),
            partitions=Partitions(database),
            exports=ExportFiles(database, known.exports_folder),
            receipt_log=receipt_log,
            invoicing=Invoicing(database, row_sha256, receipt_log, signer, collector=collector),
            deliveries=Deliveries(database, Vault(known.key_pepper, WEBHOOKS), sender, clock.now),
            alerts=Alerts(database),
            dunning=Dunning(database, InvoicedDebts()),
            tell_gateways=partial(announce_change, valkey),
            reconciliation=Reconciliation(database, signer.ring),
            paying=_paying(known, database, stack),
        )
        await Queue(known.database_url, jobs_of(works)).run(stop)


def _paying(known: Settings, database: Database, stack: AsyncExitStack) -> Paying | None:
    """The way to Stripe, where its key is set; its SDK is loaded only then."""
    if known.stripe.secret_key is None:
        return None
    from billing.payments.stripe import Stripe, StripeAccess

    stripe = Stripe(StripeAccess(known.stripe.secret_key, known.stripe.api_url), clock.now)
    stack.push_async_callback(stripe.close)
    return Paying(Payments(database), Outbox(database, stripe, StripeInvoices()))


def main() -> int:
    """Entry point; returns the exit status."""
    log_to_stderr()
    asyncio.run(run(settings.from_environment()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
