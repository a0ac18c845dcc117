"""Background jobs by name, and when they run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from admin import clock
from billing.db.partitions import Partitions
from billing.errors import StoreUnavailable
from billing.ledger.service import Ledger
from billing.payments.outbox import JOB, Outbox
from billing.payments.service import Payments
from billing.queue import Job
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
HOURLY: Final = "5 * * * *"
DAILY: Final = "10 3 * * *"


@dataclass(frozen=True, slots=True)
class Paying:
    """What a payment provider is told with."""

    payments: Payments
    outbox: Outbox


@dataclass(frozen=True, slots=True)
class Works:
    """What the jobs work with."""

    sweeper: Sweeper
    audit: Audit
    ledger: Ledger
    settlement: Settlement
    admission: Admission
    rollups: Rollups
    partitions: Partitions
    paying: Paying | None = None


def jobs_of(works: Works) -> tuple[Job, ...]:
    """All jobs."""

    async def expire_credit() -> None:
        for balance in await works.ledger.expire(clock.now()):
            await works.admission.project(balance)

    async def make_months() -> None:
        made = await works.partitions.make_ahead(clock.now())
        if made.strays:
            log.error("events_of_no_month", events=made.strays)

    async def request_top_ups() -> None:
        also = None if works.paying is None else works.paying.payments.order_top_ups
        for request in await works.ledger.request_top_ups(clock.now(), also):
            log.info("top_up_requested", tenant=request.tenant_id, number=request.number)

    async def forget_answers() -> None:
        await works.settlement.forget_answers(clock.now())

    return (
        _periodic("sweep", EVERY_5_S, works.sweeper.sweep_once),
        _periodic("expire_credit", EVERY_10_S, expire_credit),
        _periodic("request_top_ups", EVERY_10_S, request_top_ups),
        _periodic("audit_receipts", EVERY_MINUTE, works.audit.audit_once),
        _periodic("add_up_usage", EVERY_MINUTE, works.rollups.build),
        _periodic("forget_answers", HOURLY, forget_answers),
        _periodic("make_months", DAILY, make_months),
        *(() if works.paying is None else _telling(works.paying.outbox, works.admission)),
    )


def _telling(outbox: Outbox, admission: Admission) -> tuple[Job, ...]:
    """Tell the payment provider what it is to be told: at once, and again while it has not answered."""

    async def tell(order_id: str) -> None:
        for balance in await outbox.send(order_id, clock.now()):
            await admission.project(balance)

    async def tell_due() -> None:
        for balance in await outbox.send_due(clock.now()):
            await admission.project(balance)

    return Job(JOB, tell), _periodic("tell_stripe_again", EVERY_10_S, tell_due)


def _periodic(name: str, cron: str, work: Callable[[], Awaitable[object]]) -> Job:
    """A store that is away for a while is no fault of the job: the next run finds it back."""

    async def run() -> None:
        try:
            await work()
        except (StoreUnavailable, ValkeyUnavailable) as error:
            log.warning("job_waits_for_a_store", job=name, reason=str(error))

    return Job(name, run, cron)
