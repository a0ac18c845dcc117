"""Background jobs by name, and when they run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from admin import clock
from billing.alerts.service import Alerts
from billing.db.partitions import Partitions
from billing.errors import StoreUnavailable
from billing.ledger.service import Ledger
from billing.notify.delivery import Deliveries
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
EVERY_5_MINUTES: Final = "*/5 * * * *"
HOURLY: Final = "5 * * * *"
DAILY: Final = "10 3 * * *"


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
    deliveries: Deliveries
    alerts: Alerts


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
        for request in await works.ledger.request_top_ups(clock.now()):
            log.info("top_up_requested", tenant=request.tenant_id, number=request.number)

    async def forget_answers() -> None:
        await works.settlement.forget_answers(clock.now())

    return (
        _periodic("sweep", EVERY_5_S, works.sweeper.sweep_once),
        _periodic("expire_credit", EVERY_10_S, expire_credit),
        _periodic("request_top_ups", EVERY_10_S, request_top_ups),
        _periodic("deliver_notices", EVERY_5_S, works.deliveries.deliver_due),
        *_alerts(works.alerts),
        _periodic("audit_receipts", EVERY_MINUTE, works.audit.audit_once),
        _periodic("add_up_usage", EVERY_MINUTE, works.rollups.build),
        _periodic("forget_answers", HOURLY, forget_answers),
        _periodic("make_months", DAILY, make_months),
    )


def _alerts(alerts: Alerts) -> tuple[Job, ...]:
    """What is looked for in the books, each in a job of its own: one that fails holds up no other."""

    def look(name: str, cron: str, look: Callable[[datetime], Awaitable[int]]) -> Job:
        async def run() -> None:
            told = await look(clock.now())
            if told:
                log.info("notices_told", job=name, notices=told)

        return _periodic(name, cron, run)

    return (
        look("look_at_balances", EVERY_MINUTE, alerts.look_at_balances),
        look("look_at_budgets", EVERY_MINUTE, alerts.look_at_budgets),
        look("look_at_prices", EVERY_5_MINUTES, alerts.look_at_prices),
        look("look_at_promises", EVERY_5_MINUTES, alerts.look_at_promises),
        look("look_at_keys", HOURLY, alerts.look_at_keys),
    )


def _periodic(name: str, cron: str, work: Callable[[], Awaitable[object]]) -> Job:
    """A store that is away for a while is no fault of the job: the next run finds it back."""

    async def run() -> None:
        try:
            await work()
        except (StoreUnavailable, ValkeyUnavailable) as error:
            log.warning("job_waits_for_a_store", job=name, reason=str(error))

    return Job(name, run, cron)
