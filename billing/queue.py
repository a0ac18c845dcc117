"""Background jobs: enqueued in the transaction that wants them, run by name, periodic ones by the calendar.

They are Procrastinate's, in a schema of its own. Looked at beside it: SAQ's queue in Postgres enqueues on a
connection of its own, so that a job may be lost though its transaction commits, or run though it does not.
DBOS enqueues by an SQL function, as here; it brings durable workflows, threads, a global object and tables
that it migrates itself. Procrastinate is a table, a few functions, and a worker that lives in our loop.

What is not as its documentation suggests: periodic jobs are never retried. They hold a queueing lock, and a
retry that meets the next run waiting under it leaves the job running for ever (procrastinate#1446, #1543).
The next run is the retry. What a killed worker has left goes back into the queue; what is periodic goes away.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from procrastinate import App, PsycopgConnector, RetryStrategy, exceptions
from procrastinate.jobs import DeleteJobCondition, Status
from procrastinate.jobs import Job as QueuedJob
from psycopg_pool import PoolTimeout
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection

SCHEMA: Final = "queue"
CONCURRENCY: Final = 4
POLL_S: Final = 1  # for retries that fall due; new jobs are announced
HEARTBEAT_S: Final = 2
STALLED_S: Final = 8
STOP_S: Final = 20
CATCH_UP_S: Final = 2 * 86_400  # a periodic job that was missed by less runs when somebody is there to run it
RETRIES: Final = RetryStrategy(max_attempts=10, exponential_wait=2)  # 1, 2, 4 … 512 s later
KEPT_H: Final = 7 * 24  # of jobs that failed for good

_REVIVE: Final = "revive_jobs"
_FORGET: Final = "forget_failed_jobs"
_DATABASE_AWAY: Final = (exceptions.ConnectorException, exceptions.NoResult, psycopg.Error, PoolTimeout)

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """Work by name.

    ``cron`` makes it periodic: five fields in UTC, a sixth for seconds. Such a job takes no arguments, runs
    once at a time, and is never waiting twice. Any other gets those it was enqueued with, and is retried with
    growing pauses when it raises: it may run more than once.
    """

    name: str
    work: Callable[..., Awaitable[object]]
    cron: str | None = None


async def enqueue(
    connection: AsyncConnection, job: str, arguments: dict[str, Any], lock: str | None = None
) -> None:
    """Have a job done if this transaction commits, and not otherwise.

    Args:
        connection: of a settler's, an operator's or a tenant's transaction.
        job: a name that the process of the jobs knows.
        arguments: JSON; ids, no secrets and no contents.
        lock: jobs with the same one run one at a time, in order.
    """
    statement = text(f"SELECT {SCHEMA}.enqueue(:job, :lock, CAST(:arguments AS jsonb))")
    values = {"job": job, "lock": lock, "arguments": json.dumps(arguments)}
    await connection.execute(statement, values)


class Queue:
    """Worker and scheduler of one process; any number of processes may be.

    Args:
        url: as `Database` takes it, for the role that owns the tables.
        jobs: all there are; a job of another name stays in the queue as failed.
    """

    def __init__(self, url: str, jobs: Iterable[Job]) -> None:
        logging.getLogger("procrastinate").setLevel(logging.WARNING)  # at INFO it is three lines a run
        connector = PsycopgConnector(
            conninfo=_conninfo(url),
            kwargs={"options": f"-c search_path={SCHEMA}", "application_name": "kvitto-queue"},
            min_size=1,
            max_size=CONCURRENCY,
        )
        self._app = App(connector=connector, periodic_defaults={"max_delay": CATCH_UP_S})
        own = (Job(_REVIVE, self._revive, "* * * * * */5"), Job(_FORGET, self._forget, "30 3 * * *"))
        for job in (*jobs, *own):
            self._register(job)

    async def run(self, stop: asyncio.Event) -> None:
        """Run jobs until ``stop``, then finish those that run. A database that is away is waited for."""
        while not stop.is_set():
            try:
                async with self._app.open_async():
                    await self._work(stop)
            except _DATABASE_AWAY as error:
                _log.warning("the queue waits for the database: %s", error)
            try:
                async with asyncio.timeout(1):
                    await stop.wait()
            except TimeoutError:
                continue

    async def _work(self, stop: asyncio.Event) -> None:
        worker = asyncio.create_task(
            self._app.run_worker_async(
                concurrency=CONCURRENCY,
                install_signal_handlers=False,
                fetch_job_polling_interval=POLL_S,
                update_heartbeat_interval=HEARTBEAT_S,
                stalled_worker_timeout=STALLED_S,
                shutdown_graceful_timeout=STOP_S,
                delete_jobs=DeleteJobCondition.SUCCESSFUL,
            )
        )
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({worker, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            worker.cancel()
            await asyncio.wait({worker})
        if not worker.cancelled():
            worker.result()

    def _register(self, job: Job) -> None:
        async def run(**arguments: Any) -> None:
            await job.work(**arguments)

        async def run_at(timestamp: int) -> None:  # noqa: ARG001  the scheduler's, for which run this is
            await job.work()

        if job.cron is None:
            self._app.task(name=job.name, retry=RETRIES)(run)
        else:
            task = self._app.task(name=job.name, lock=job.name, queueing_lock=job.name)(run_at)
            self._app.periodic(cron=job.cron)(task)

    async def _revive(self) -> None:
        """Put back what was running where nobody is any more; a periodic job's next run is due anyway."""
        manager = self._app.job_manager
        for job in await manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_S):
            _log.warning("a job's worker is gone: %s", job.task_name)
            if _is_periodic(job):
                await manager.finish_job(job, Status.FAILED, delete_job=True)
            else:
                await manager.retry_job(job)

    async def _forget(self) -> None:
        await self._app.job_manager.delete_old_jobs(KEPT_H, include_failed=True, include_aborted=True)


def _is_periodic(job: QueuedJob) -> bool:
    return job.queueing_lock is not None


def _conninfo(url: str) -> str:
    """The same database, in the words of libpq."""
    address = make_url(url).set(drivername="postgresql")
    ssl = address.query.get("ssl")
    if ssl is not None:
        address = address.difference_update_query(["ssl"]).update_query_dict({"sslmode": ssl})
    return address.render_as_string(hide_password=False)
