"""One part of the stack: a child process that is started, watched, restarted on any exit, and stopped."""

import asyncio
import contextlib
import math
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from admin import clock
from admin.stack import journal, process
from admin.stack.errors import StackFailed
from admin.stack.process import POLL_INTERVAL_S, Command
from admin.stack.state import PartStatus

BACKOFF_MIN_S: Final = 0.2
BACKOFF_MAX_S: Final = 10.0
STEADY_S: Final = 30.0  # a life as long as this makes the next restart quick again


@dataclass(frozen=True, slots=True)
class Plan:
    """How one part lives.

    Args:
        name: as in status and logs.
        prepare: makes what it needs and says what to start; called before each start.
        ready: says whether the process of that pid serves.
        address: where it is reached, for people.
        ready_timeout_s: a start that takes longer is ended and counts as an exit.
        stop_timeout_s: after its stop signal, before the kill.
        tries: starts before the first success; beyond, the stack gives up. Later restarts never give up.
    """

    name: str
    prepare: Callable[[], Awaitable[Command]]
    ready: Callable[[int], Awaitable[bool]]
    address: str | None = None
    ready_timeout_s: float = 60.0
    stop_timeout_s: float = 10.0
    tries: int = 3


class Part:
    """Owns the process of one plan. ``changed`` is called after each change of ``status``."""

    def __init__(self, plan: Plan, log: Path, changed: Callable[[], None]) -> None:
        self.plan = plan
        self.status = PartStatus(plan.name, address=plan.address)
        self._log = log
        self._log_offset = 0
        self._changed = changed
        self._child: subprocess.Popen[bytes] | None = None
        self._command: Command | None = None
        self._task: asyncio.Task[None] | None = None
        self._once_ready = asyncio.Event()

    async def start(self) -> None:
        """Start it and return when it is ready; from then on it is kept alive.

        Raises:
            StackFailed: it did not become ready in ``plan.tries`` starts.
        """
        assert self._task is None
        self._task = asyncio.create_task(self._supervise(), name=f"supervise {self.plan.name}")
        ready = asyncio.create_task(self._once_ready.wait())
        try:
            await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """End it and all it has started. Safe when it never ran."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, StackFailed):
            await self._task
        if self._child is not None and self._command is not None:
            self._say(state="stopping", detail="")
            await process.stop(self._child, self._command.stop_signal, self.plan.stop_timeout_s)
        if self.status.state != "failed":
            self._say(state="stopped", pid=None, since_s=None, detail="")

    def kill(self) -> None:
        """End it at once, for a user who will not wait."""
        if self._child is not None:
            process.end_group(self._child.pid)

    async def _supervise(self) -> None:
        backoff_s = BACKOFF_MIN_S
        loop = asyncio.get_running_loop()
        while True:
            begun_s = loop.time()
            reason = await self._live()
            if not self._once_ready.is_set() and self.status.restarts + 1 >= self.plan.tries:
                self._say(state="failed", pid=None, since_s=None, detail=reason)
                raise StackFailed(self.plan.name, reason, journal.tail(self._log, self._log_offset))
            if loop.time() - begun_s >= STEADY_S:
                backoff_s = BACKOFF_MIN_S
            again = f"{reason}; starting again in {backoff_s:.1f} s"
            restarts = self.status.restarts + 1
            self._say(state="restarting", pid=None, since_s=None, restarts=restarts, detail=again)
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    async def _live(self) -> str:
        """Live one life of the process; returns how it ended. Cancelled, it leaves that to ``stop``."""
        self._say(state="starting")
        self._log_offset = journal.open_life(self._log)
        try:
            self._command = await self.plan.prepare()
            with self._log.open("ab") as log:
                child = self._child = process.spawn(self._command, log)
        except (OSError, RuntimeError) as error:
            return f"could not be started: {error}"
        self._say(pid=child.pid, since_s=clock.now().timestamp(), detail="")
        ready = await self._until_ready(child)
        if ready:
            self._say(state="ready")
            self._once_ready.set()
            await process.wait(child, math.inf)
        running = child.poll() is None
        process.end_group(child.pid)
        await process.wait(child, self.plan.stop_timeout_s)
        self._child = None
        if running:
            return f"was not ready after {self.plan.ready_timeout_s:.0f} s"
        return process.ended(child.returncode)

    async def _until_ready(self, child: subprocess.Popen[bytes]) -> bool:
        deadline_s = asyncio.get_running_loop().time() + self.plan.ready_timeout_s
        while child.poll() is None and asyncio.get_running_loop().time() < deadline_s:
            if await self.plan.ready(child.pid):
                return True
            await asyncio.sleep(POLL_INTERVAL_S)
        return False

    def _say(self, **changes: Any) -> None:
        self.status = replace(self.status, **changes)
        self._changed()
