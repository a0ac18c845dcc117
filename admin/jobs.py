"""Background jobs by name, and the loop that runs them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from admin import clock
from billing.errors import StoreUnavailable
from billing.ledger.service import Ledger
from billing.settlement.batch import Settlement
from gateway.admission.admit import Admission
from gateway.audit import Audit
from gateway.refusal import ValkeyUnavailable
from gateway.sweep import Sweeper
from gateway.telemetry import log

SWEEP_INTERVAL_S: Final = 5.0
AUDIT_INTERVAL_S: Final = 60.0
EXPIRE_INTERVAL_S: Final = 10.0
TOP_UP_INTERVAL_S: Final = 10.0
FORGET_INTERVAL_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Job:
    """Work that is done again and again, ``interval_s`` after it last ended. One run at a time."""

    name: str
    interval_s: float
    work: Callable[[], Awaitable[object]]


def jobs_of(
    sweeper: Sweeper, audit: Audit, ledger: Ledger, settlement: Settlement, admission: Admission
) -> tuple[Job, ...]:
    """Journals drained, lost holds swept, receipts graded, ended credit taken back, top-ups asked for."""

    async def expire() -> None:
        for balance in await ledger.expire(clock.now()):
            await admission.project(balance)

    async def request_top_ups() -> None:
        for request in await ledger.request_top_ups(clock.now()):
            log.info("top_up_requested", tenant=request.tenant_id, number=request.number)

    async def forget_answers() -> None:
        await settlement.forget_answers(clock.now())

    return (
        Job("sweep", SWEEP_INTERVAL_S, sweeper.sweep_once),
        Job("audit_receipts", AUDIT_INTERVAL_S, audit.audit_once),
        Job("expire_credit", EXPIRE_INTERVAL_S, expire),
        Job("request_top_ups", TOP_UP_INTERVAL_S, request_top_ups),
        Job("forget_answers", FORGET_INTERVAL_S, forget_answers),
    )


async def keep_running(jobs: tuple[Job, ...], stop: asyncio.Event) -> None:
    """Run each job at its pace until ``stop``. Stores that are away for a while are waited for."""
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(_repeat(job, stop), name=job.name)


async def _repeat(job: Job, stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            await job.work()
        except (StoreUnavailable, ValkeyUnavailable) as error:
            log.warning("job_waits_for_a_store", job=job.name, reason=str(error))
        try:
            async with asyncio.timeout(job.interval_s):
                await stop.wait()
        except TimeoutError:
            continue
