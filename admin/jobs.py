"""Background jobs by name, and when they run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from admin import clock
from billing.alerts.service import Alerts
from billing.db.partitions import Partitions
from billing.errors import PeriodOpen, StoreUnavailable
from billing.invoicing.service import Invoicing
from billing.ledger.balance import BalanceVersion
from billing.ledger.service import Ledger
from billing.lifecycle.collection import Dunning
from billing.notify.delivery import Deliveries
from billing.payments import outbox as payments_outbox
from billing.payments.outbox import Outbox
from billing.payments.service import Payments
from billing.queue import Job
from billing.receipts.log.service import ReceiptLog
from billing.reconcile.service import Reconciliation
from billing.reports.export.files import service as exports_files
from billing.reports.export.files.service import ExportFiles
from billing.reports.rollup import Rollups
from billing.settlement.batch import Settlement
from gateway.admission.admit import Admission
from gateway.audit import Audit
from gateway.refusal import ValkeyUnavailable
from gateway.sweep import Sweeper
from gateway.telemetry import log

EVERY_5_S: Final = "* * * * * */5"
EVERY_10_S: Final = "* * * * * */10"
EVERY_MINUTE: Final = "* * * * *"
EVERY_5_MINUTES: Final = "*/5 * * * *"
HOURLY: Final = "5 * * * *"
BEHIND_THE_HOUR: Final = "35 * * * *"
DAILY: Final = "10 3 * * *"
NIGHTLY: Final = "40 2 * * *"

RECONCILED: Final = timedelta(days=2)  # of each night: a night that was missed is made up for
SETTLED_AFTER: Final = timedelta(minutes=11)  # what still runs is not in the books yet


@dataclass(frozen=True, slots=True)
class Paying:
    """What a payment provider is told with."""

    payments: Payments
    outbox: Outbox


@dataclass(frozen=True, slots=True)
class Works:
    """What the jobs work with; ``tell_gateways`` says of a tenant that it has changed."""

    sweeper: Sweeper
    audit: Audit
    ledger: Ledger
    settlement: Settlement
    admission: Admission
    rollups: Rollups
    partitions: Partitions
    exports: ExportFiles
    receipt_log: ReceiptLog
    invoicing: Invoicing
    deliveries: Deliveries
    alerts: Alerts
    dunning: Dunning
    tell_gateways: Callable[[str], Awaitable[None]]
    reconciliation: Reconciliation
    paying: Paying | None = None


def jobs_of(works: Works) -> tuple[Job, ...]:
    """All jobs."""
    return (
        *_of_books(works),
        *_of_credit(works),
        *_of_receipts(works),
        *_of_exports(works.exports),
        *_of_notices(works),
        *_of_payments(works),
    )


def _of_books(works: Works) -> tuple[Job, ...]:
    async def make_months() -> None:
        made = await works.partitions.make_ahead(clock.now())
        if made.strays:
            log.error("events_of_no_month", events=made.strays)

    async def reconcile() -> None:
        """What differs is told and left to people: nothing is repaired by a clock."""
        now = clock.now()
        async for found in works.reconciliation.run(now - RECONCILED, now - SETTLED_AFTER):
            log.error(
                "books_differ",
                check=found.check,
                object_id=found.object_id,
                differs=found.differs,
                repair=found.repair,
            )

    async def forget_answers() -> None:
        await works.settlement.forget_answers(clock.now())

    return (
        _periodic("sweep", EVERY_5_S, works.sweeper.sweep_once),
        _periodic("add_up_usage", EVERY_MINUTE, works.rollups.build),
        _periodic("forget_answers", HOURLY, forget_answers),
        _periodic("make_months", DAILY, make_months),
        _periodic("reconcile", NIGHTLY, reconcile),
    )


def _of_credit(works: Works) -> tuple[Job, ...]:
    async def expire_credit() -> None:
        for balance in await works.ledger.expire(clock.now()):
            await works.admission.project(balance)

    async def request_top_ups() -> None:
        also = None if works.paying is None else works.paying.payments.order_top_ups
        for request in await works.ledger.request_top_ups(clock.now(), also):
            log.info("top_up_requested", tenant=request.tenant_id, number=request.number)

    return (
        _periodic("expire_credit", EVERY_10_S, expire_credit),
        _periodic("request_top_ups", EVERY_10_S, request_top_ups),
    )


def _of_receipts(works: Works) -> tuple[Job, ...]:
    async def seal_receipts() -> None:
        sealed = await works.receipt_log.seal(clock.now())
        if sealed is not None:
            log.info("receipts_sealed", size=sealed.head.size, root=sealed.head.root.hex())

    async def close_periods() -> None:
        """Issue what is due. What waits is told, what cannot be derived is an error; none holds up others."""
        issued, failed = await works.invoicing.close_due(clock.now())
        for tenant_id in {invoice.tenant_id for invoice in issued}:
            present = await works.ledger.balance(tenant_id)
            await works.admission.project(BalanceVersion(tenant_id, present.spendable, present.version))
        for invoice in issued:
            log.info("invoice_finalised", tenant=invoice.tenant_id, number=invoice.number)
        for tenant_id, error in failed.items():
            waits = isinstance(error, PeriodOpen | StoreUnavailable)
            tell = log.warning if waits else log.error
            tell("period_not_closed", tenant=tenant_id, reason=str(error))

    async def collect_debts() -> None:
        """Gateways that are not told ask within two seconds."""
        for tenant in await works.dunning.look(clock.now()):
            log.info("tenant_standing", tenant=tenant.id, suspended=tenant.suspension is not None)
            await works.tell_gateways(tenant.id)

    return (
        _periodic("audit_receipts", EVERY_MINUTE, works.audit.audit_once),
        _periodic("seal_receipts", HOURLY, seal_receipts),
        _periodic("close_periods", BEHIND_THE_HOUR, close_periods),
        _periodic("collect_debts", HOURLY, collect_debts),
    )


def _of_exports(exports: ExportFiles) -> tuple[Job, ...]:
    async def forget_exports() -> None:
        await exports.forget(clock.now())

    return Job(exports_files.JOB, exports.make), _periodic("forget_exports", HOURLY, forget_exports)


def _of_notices(works: Works) -> tuple[Job, ...]:
    """What is looked for in the books, each in a job of its own: one that fails holds up no other."""

    def look(name: str, cron: str, look: Callable[[datetime], Awaitable[int]]) -> Job:
        async def run() -> None:
            told = await look(clock.now())
            if told:
                log.info("notices_told", job=name, notices=told)

        return _periodic(name, cron, run)

    alerts = works.alerts
    return (
        _periodic("deliver_notices", EVERY_5_S, works.deliveries.deliver_due),
        look("look_at_balances", EVERY_MINUTE, alerts.look_at_balances),
        look("look_at_budgets", EVERY_MINUTE, alerts.look_at_budgets),
        look("look_at_prices", EVERY_5_MINUTES, alerts.look_at_prices),
        look("look_at_promises", EVERY_5_MINUTES, alerts.look_at_promises),
        look("look_at_keys", HOURLY, alerts.look_at_keys),
    )


def _of_payments(works: Works) -> tuple[Job, ...]:
    """Tell the payment provider what it is to be told: at once, and again while it has not answered."""
    if works.paying is None:
        return ()
    outbox = works.paying.outbox

    async def tell(order_id: str) -> None:
        for balance in await outbox.send(order_id, clock.now()):
            await works.admission.project(balance)

    async def tell_due() -> None:
        for balance in await outbox.send_due(clock.now()):
            await works.admission.project(balance)

    return Job(payments_outbox.JOB, tell), _periodic("tell_stripe_again", EVERY_10_S, tell_due)


def _periodic(name: str, cron: str, work: Callable[[], Awaitable[object]]) -> Job:
    """A store that is away for a while is no fault of the job: the next run finds it back."""

    async def run() -> None:
        try:
            await work()
        except (StoreUnavailable, ValkeyUnavailable) as error:
            log.warning("job_waits_for_a_store", job=name, reason=str(error))

    return Job(name, run, cron)
