"""Knows which workers live and what they say of themselves: a task a worker asks over and over."""

import asyncio
import contextlib
import time

from engine.cluster.answer import WorkerDown
from engine.cluster.options import Deadlines
from engine.cluster.router import Worker


class Watch:
    """Keeps `Worker.ready` true to life: healthy, reachable with our secret, and not draining.

    Requests that meet a dead worker clear it; only a check sets it.
    """

    def __init__(self, workers: tuple[Worker, ...], deadlines: Deadlines) -> None:
        self._workers = workers
        self._deadlines = deadlines
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Check every worker once, then go on in the background."""
        await asyncio.gather(*map(self.check, self._workers))
        self._tasks = [
            asyncio.create_task(self._repeat(worker), name=f"watch {worker.name}") for worker in self._workers
        ]

    async def close(self) -> None:
        """Stop checking."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    async def _repeat(self, worker: Worker) -> None:
        while True:
            await asyncio.sleep(self._deadlines.health_interval_s)
            await self.check(worker)

    async def check(self, worker: Worker) -> None:
        """Ask a worker now. Its health first: its engine may be dead, and its last report still be there."""
        if not await worker.client.healthy():
            worker.lost()
            return
        try:
            report = await worker.client.report()
        except WorkerDown:
            worker.lost()
        else:
            worker.hear(report, time.monotonic())
