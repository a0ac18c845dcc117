"""The background jobs: what they do, on real Postgres and Valkey, and that the queue runs them."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import text

from admin import clock
from admin.jobs import Paying, Works, jobs_of
from billing.alerts.service import Alerts
from billing.db.access import OWNER
from billing.db.partitions import Partitions
from billing.db.transaction import Database
from billing.invoicing.invoice import Payment
from billing.invoicing.service import Invoicing
from billing.invoicing.terms import Fee
from billing.ledger.auto_top_up import AutoTopUp
from billing.ledger.credit import Grant
from billing.ledger.service import Ledger
from billing.lifecycle.collection import Dunning
from billing.lifecycle.receivables import InvoicedDebts
from billing.money import Femto
from billing.notify.delivery import Deliveries, Reply
from billing.notify.service import Notices
from billing.payments.outbox import Outbox
from billing.payments.service import Payments
from billing.payments.stripe import Stripe, StripeAccess
from billing.pricing.document import row_sha256
from billing.pricing.service import Prices
from billing.queue import Job, Queue
from billing.receipts.log.service import ReceiptLog
from billing.receipts.service import Receipts
from billing.reconcile.service import Reconciliation
from billing.reports.export.files.service import ExportFiles
from billing.reports.rollup import Rollups
from billing.request_id import RANDOM_BYTES, mint
from billing.settlement.batch import Settlement
from billing.tenancy.service import Tenancy
from gateway.admission.admit import Admission
from gateway.audit import Audit
from gateway.refusal import BalanceInsufficient
from gateway.snapshot import announce_change
from gateway.sweep import Patience, SweepBooks, Sweeper
from gateway.telemetry import SweepTelemetry
from gateway.valkey import Valkey
from gateway.vault import WEBHOOKS, Vault
from tests.attested import Signed, decode, prefill
from tests.billing.invoicing.conftest import firm_of
from tests.billing.payments.fake_stripe import SECRET_KEY, FakeStripe
from tests.deployment import signer
from tests.gateway.doubles import ScriptedJournals


def all_jobs(
    database: Database,
    valkey: Valkey,
    settlement: Settlement,
    journals: ScriptedJournals | None = None,
    paying: Paying | None = None,
    tell_gateways: Callable[[str], Awaitable[None]] | None = None,
) -> tuple[Job, ...]:
    tenancy, ledger, receipts = Tenancy(database, b"pepper"), Ledger(database), Receipts(database)
    books = SweepBooks(tenancy, Prices(database), ledger, settlement, receipts)
    sweeper = Sweeper(valkey, books, journals or ScriptedJournals(), patience=Patience(grace_s=0.0))
    audit = Audit(valkey, receipts, SweepTelemetry())
    signs = signer()
    receipt_log = ReceiptLog(database, signs)
    return jobs_of(
        Works(
            sweeper=sweeper,
            audit=audit,
            ledger=ledger,
            settlement=settlement,
            admission=Admission(valkey),
            rollups=Rollups(database),
            partitions=Partitions(database),
            exports=ExportFiles(database, None),
            receipt_log=receipt_log,
            invoicing=Invoicing(database, row_sha256, receipt_log, signs),
            deliveries=Deliveries(database, Vault(b"pepper", WEBHOOKS), Deaf(), clock.now),
            alerts=Alerts(database),
            dunning=Dunning(database, InvoicedDebts()),
            tell_gateways=tell_gateways or partial(announce_change, valkey),
            reconciliation=Reconciliation(database, signs.ring),
            paying=paying,
        )
    )


def by_calendar(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    return tuple(job for job in jobs if job.cron is not None)


class Deaf:
    """A sender to endpoints that take nothing."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        return Reply(503, "", timedelta(0))


async def test_ended_credit_is_taken_back_and_the_next_admission_knows(
    database_url: str, valkey_url: str
) -> None:
    database, valkey = Database(database_url), Valkey.connect(valkey_url)
    try:
        ledger, admission, now = Ledger(database), Admission(valkey), clock.now()
        tenant = await Tenancy(database, b"pepper").create_tenant("short", at=now)
        grant = Grant(Femto(10**15), "granted", "trial", "test", expires_at=now - timedelta(seconds=1))
        await admission.project(await ledger.grant(tenant.id, grant, now - timedelta(days=1)))
        await admission.admit(tenant.id, Femto(1))

        jobs = {job.name: job for job in all_jobs(database, valkey, Settlement(database))}
        await jobs["expire_credit"].work()

        assert (await ledger.balance(tenant.id)).total == 0
        assert await ledger.check_integrity() == []
        with pytest.raises(BalanceInsufficient):
            await admission.admit(tenant.id, Femto(1))
    finally:
        await valkey.close()
        await database.close()


async def test_periods_that_are_over_are_closed_by_the_clock(database_url: str, valkey_url: str) -> None:
    database, valkey = Database(database_url), Valkey.connect(valkey_url)
    try:
        tenancy, long_ago = Tenancy(database, b"pepper"), clock.now() - timedelta(days=40)
        tenant = await tenancy.create_tenant("monthly", at=long_ago, billing_mode="postpaid")
        jobs = {job.name: job for job in all_jobs(database, valkey, Settlement(database))}
        for _ in range(2):
            await jobs["close_periods"].work()
        issued = await Invoicing(database, row_sha256).invoices(tenant.id)
        assert [invoice.kind for invoice in issued] in (["invoice"], ["invoice", "invoice"])
        assert issued[-1].until <= clock.now()
        assert len({invoice.until for invoice in issued}) == len(issued)
    finally:
        await valkey.close()
        await database.close()


async def test_who_does_not_pay_is_reminded_suspended_and_resumed_when_all_is_paid(
    database_url: str, valkey_url: str
) -> None:
    database, valkey = Database(database_url), Valkey.connect(valkey_url)
    told: list[str] = []

    async def tell(owner_id: str) -> None:
        told.append(owner_id)

    try:
        firm, dunning = await firm_of(database), Dunning(database, InvoicedDebts())
        await firm.agreed(fees=(Fee("support", 500),), payment_days=10)
        issued = await firm.close()
        (due_at,) = {one.due_at for one in issued}
        assert due_at is not None
        for days in (0, 3, 9, 10):
            assert await dunning.look(due_at + timedelta(days=days)) == []
        jobs = {job.name: job for job in all_jobs(database, valkey, Settlement(database), tell_gateways=tell)}
        await jobs["collect_debts"].work()
        await jobs["collect_debts"].work()
        suspension = (await firm.tenancy.tenant(firm.tenant_id)).suspension
        assert (suspension is not None and suspension.by, told) == ("dunning", [firm.tenant_id])
        facts = [kept.notice.facts for kept in await Notices(database).notices(firm.tenant_id)]
        steps = [each["step"] for each in facts if each.get("number") == issued[0].number and "step" in each]
        assert steps == ["reminder_1", "reminder_2", "suspension"]
        for one in issued:
            await jobs["collect_debts"].work()
            assert told == [firm.tenant_id], "something is open"
            await firm.settling.pay(
                Payment(one.number, one.due_cents, "transfer", one.number, clock.now(), "test")
            )
        await jobs["collect_debts"].work()
        assert (await firm.tenancy.tenant(firm.tenant_id)).suspension is None
        assert told == [firm.tenant_id] * 2
    finally:
        await valkey.close()
        await database.close()


async def test_credit_that_runs_low_asks_for_a_top_up_once(database_url: str, valkey_url: str) -> None:
    database, valkey = Database(database_url), Valkey.connect(valkey_url)
    try:
        ledger = Ledger(database)
        tenant = await Tenancy(database, b"pepper").create_tenant("low", at=clock.now())
        await ledger.set_auto_top_up(tenant.id, AutoTopUp(Femto(5), Femto(20)), clock.now(), actor="test")
        jobs = {job.name: job for job in all_jobs(database, valkey, Settlement(database))}
        for _ in range(2):
            await jobs["request_top_ups"].work()
        (request,) = await ledger.top_up_requests(tenant.id)
        assert (request.number, request.amount) == (1, 20)
    finally:
        await valkey.close()
        await database.close()


async def test_a_top_up_that_was_asked_for_is_paid_and_the_next_admission_knows(
    database_url: str, valkey_url: str
) -> None:
    database, valkey, fake = Database(database_url), Valkey.connect(valkey_url), FakeStripe(clock.now())
    async with fake.wire.served() as url:
        stripe = Stripe(StripeAccess(SECRET_KEY, url), clock.now)
        try:
            ledger, payments, now = Ledger(database), Payments(database), clock.now()
            tenant = await Tenancy(database, b"pepper").create_tenant("paying", at=now)
            customer_id = fake.make_customer()["id"]
            fake.give_card(customer_id)
            await payments.link(tenant.id, customer_id, now, actor="test")
            await ledger.set_auto_top_up(tenant.id, AutoTopUp(Femto(5), Femto(10**15)), now, actor="test")
            paying = Paying(payments, Outbox(database, stripe))
            jobs = {job.name: job for job in all_jobs(database, valkey, Settlement(database), paying=paying)}
            await jobs["request_top_ups"].work()
            await jobs["tell_stripe_again"].work()
            assert (await ledger.balance(tenant.id)).topped_up == 10**15
            await Admission(valkey).admit(tenant.id, Femto(10**15))
            (order,) = await payments.orders(tenant.id)
            await jobs["tell_stripe"].work(order_id=order.id)
            assert (await payments.order(order.id)).attempts == 1
        finally:
            await stripe.close()
            await valkey.close()
            await database.close()


async def test_the_sweep_keeps_what_workers_attest(database_url: str, valkey_url: str) -> None:
    database, valkey = Database(database_url), Valkey.connect(valkey_url)
    try:
        request_id = mint(clock.now(), secrets.token_bytes(RANDOM_BYTES))
        journals = ScriptedJournals([Signed(prefill(request_id)), Signed(decode(request_id, 1, 0, 5))])
        jobs = {job.name: job for job in all_jobs(database, valkey, Settlement(database), journals)}
        await jobs["sweep"].work()
        await jobs["audit_receipts"].work()
        assert journals.lines == []
        (receipt,) = (await Receipts(database).of([request_id])).values()
        assert len(receipt.attestations) == 2
    finally:
        await valkey.close()
        await database.close()


async def test_a_store_that_is_away_is_no_fault_of_a_job(database_url: str, valkey_url: str) -> None:
    nowhere = Database("postgresql+asyncpg://u:p@/kvitto?host=/nonexistent")
    valkey = Valkey.connect(valkey_url)
    try:
        for job in by_calendar(all_jobs(nowhere, valkey, Settlement(nowhere))):
            await job.work()
    finally:
        await valkey.close()
        await nowhere.close()


async def test_the_process_runs_every_job_by_its_calendar(database_url: str, valkey_url: str) -> None:
    """Those of every few seconds, of every minute, and of the night, which is made up for."""
    database, valkey = Database(database_url), Valkey.connect(valkey_url)
    stop = asyncio.Event()
    done: set[str] = set()

    def noted(job: Job) -> Job:
        async def work() -> None:
            await job.work()
            done.add(job.name)

        return replace(job, work=work)

    jobs = by_calendar(all_jobs(database, valkey, Settlement(database)))
    running = asyncio.create_task(Queue(database_url, map(noted, jobs)).run(stop))
    try:
        async with asyncio.timeout(30):
            while done != {job.name for job in jobs}:
                await asyncio.sleep(0.05)
    finally:
        stop.set()
        await running
        await valkey.close()
        await database.close()


async def test_books_that_differ_are_told_each_night(
    database_url: str, valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each row that differs is an error of its own in the log, and stays as it is."""
    database, valkey = Database(database_url), Valkey.connect(valkey_url)
    altered = text("UPDATE balance SET granted = granted + :by WHERE tenant_id = :tenant")
    try:
        ledger, now = Ledger(database), clock.now()
        tenant = await Tenancy(database, b"pepper").create_tenant("differing", at=now)
        await ledger.grant(tenant.id, Grant(Femto(7), "granted", "trial", "test"), now)
        async with database.transaction(OWNER) as connection:
            await connection.execute(altered, {"by": 1, "tenant": tenant.id})
        jobs = {job.name: job for job in all_jobs(database, valkey, Settlement(database))}
        await jobs["reconcile"].work()
        told = [record.getMessage() for record in caplog.records if "books_differ" in str(record.msg)]
        assert any("its entries sum to 7" in line for line in told)
        # The log's head is another test's, signed by a key of its own.
        assert [line for line in told if tenant.id not in line and "receipt log" not in line] == []
        assert (await ledger.balance(tenant.id)).granted == 8
        async with database.transaction(OWNER) as connection:
            await connection.execute(altered, {"by": -1, "tenant": tenant.id})
    finally:
        await valkey.close()
        await database.close()
