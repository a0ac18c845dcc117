"""Background jobs on a real queue: with their transaction, again if they fail, one at a time, never stuck."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import exc, text

from billing.db.access import OWNER, SETTLER, of_tenant, view_as
from billing.db.transaction import Database
from billing.queue import Job, Queue, enqueue

EVERY_SECOND = "* * * * * *"


@asynccontextmanager
async def running(url: str, *jobs: Job) -> AsyncIterator[asyncio.Event]:
    """A worker with these jobs, until the block ends."""
    stop = asyncio.Event()
    work = asyncio.create_task(Queue(url, jobs).run(stop))
    try:
        yield stop
    finally:
        stop.set()
        async with asyncio.timeout(30):
            await work


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while True:
            found = holds()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.02)


async def execute(database: Database, statement: str, **values: object) -> list[Any]:
    async with database.transaction(OWNER) as connection:
        found = await connection.execute(text(statement), values)
        return list(found.all()) if found.returns_rows else []


@pytest.fixture(autouse=True)
async def empty(database: Database) -> None:
    await execute(database, "TRUNCATE queue.procrastinate_jobs, queue.procrastinate_workers CASCADE")


async def test_a_job_runs_when_its_transaction_commits_and_not_otherwise(
    database_url: str, database: Database
) -> None:
    done: list[dict[str, Any]] = []

    async def work(**arguments: Any) -> None:
        done.append(arguments)

    async def enqueue_and_fail() -> None:
        async with database.transaction(SETTLER) as connection:
            await enqueue(connection, "demo", {"which": "undone"})
            raise KeyError

    async with running(database_url, Job("demo", work)):
        with pytest.raises(KeyError):
            await enqueue_and_fail()
        async with database.transaction(SETTLER) as connection:
            await enqueue(connection, "demo", {"which": "wanted", "count": 2})
            assert done == []
        await until(lambda: done != [])
    assert done == [{"which": "wanted", "count": 2}]


async def test_who_may_enqueue_sees_nothing_of_the_queue(database: Database) -> None:
    async with database.transaction(of_tenant("ten_1")) as connection:
        await enqueue(connection, "demo", {})
    for who, statement in (
        (of_tenant("ten_1"), "SELECT 1 FROM queue.procrastinate_jobs"),
        (view_as("ten_1"), "SELECT queue.enqueue('demo', NULL, '{}')"),
    ):
        with pytest.raises(exc.DBAPIError, match="permission denied"):
            await asking(database, who, statement)


async def asking(database: Database, who: Any, statement: str) -> None:
    async with database.transaction(who) as connection:
        await connection.execute(text(statement))


async def test_a_job_that_fails_is_tried_again_after_growing_pauses(
    database_url: str, database: Database
) -> None:
    tries: list[float] = []

    async def work() -> None:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) < 3:
            raise KeyError("not yet")

    async with running(database_url, Job("demo", work)):
        async with database.transaction(SETTLER) as connection:
            await enqueue(connection, "demo", {})
        await until(lambda: len(tries) == 3)
        assert tries[2] - tries[1] > 1.5, "1 s, then 2 s"


async def test_a_periodic_job_runs_one_at_a_time_and_goes_on_after_a_failure(database_url: str) -> None:
    runs, at_once, most = 0, 0, 0

    async def work() -> None:
        nonlocal runs, at_once, most
        runs, at_once = runs + 1, at_once + 1
        most = max(most, at_once)
        await asyncio.sleep(1.2)
        at_once -= 1
        if runs == 1:
            raise KeyError("a fault of ours")

    jobs = (Job("demo", work, EVERY_SECOND),)
    async with running(database_url, *jobs), running(database_url, *jobs):
        await until(lambda: runs >= 3)
    assert most == 1


async def test_what_a_killed_worker_has_left_is_done_by_another(
    database_url: str, database: Database
) -> None:
    done: list[str] = []

    async def work(name: str) -> None:
        done.append(name)

    async def repeat() -> None:
        done.append("periodic")

    (dead,) = await execute(
        database,
        """INSERT INTO queue.procrastinate_workers (last_heartbeat) VALUES (now() - interval '1 day')
            RETURNING id""",
    )
    await execute(
        database,
        """INSERT INTO queue.procrastinate_jobs
            (queue_name, task_name, lock, queueing_lock, args, status, worker_id)
        VALUES ('default', 'once', NULL, NULL, '{"name": "once"}', 'doing', :worker),
            ('default', 'repeat', 'repeat', 'repeat', '{"timestamp": 1}', 'doing', :worker)""",
        worker=dead.id,
    )
    async with running(database_url, Job("once", work), Job("repeat", repeat, EVERY_SECOND)):
        await until(lambda: {"once", "periodic"} <= set(done))


async def test_a_worker_whose_connections_are_cut_goes_on(database_url: str, database: Database) -> None:
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1

    async with running(database_url, Job("demo", work, EVERY_SECOND)):
        await until(lambda: runs > 0)
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'kvitto-queue'"
        assert await execute(database, cut)
        before = runs
        await until(lambda: runs > before + 1)


async def test_a_stop_waits_for_what_runs_and_takes_nothing_more(
    database_url: str, database: Database
) -> None:
    begun, ended = 0, 0

    async def work() -> None:
        nonlocal begun, ended
        begun += 1
        await asyncio.sleep(0.5)
        ended += 1

    async with running(database_url, Job("demo", work)):
        async with database.transaction(SETTLER) as connection:
            for _ in range(9):
                await enqueue(connection, "demo", {}, lock="one by one")
        await until(lambda: begun > 0)
    assert begun == ended < 9
    left = "SELECT 1 FROM queue.procrastinate_jobs WHERE status = 'todo' AND task_name = 'demo'"
    assert len(await execute(database, left)) == 9 - ended
