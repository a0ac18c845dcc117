"""The local stack as the command line sees it: up, down, restart, status, logs, connect."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from admin import clock
from admin.settings import Settings, SettingsMissing, write_private
from admin.stack import journal, places, process, state
from admin.stack.errors import PartMissing, StackDown, StackFailed, StackInterrupted, StackRunning
from admin.stack.state import Layout, PartStatus, StackOptions, StackStatus

if TYPE_CHECKING:
    from admin.stack.restart import Restarted
    from engine.api import WorkerReport

__all__ = [
    "PartStatus",
    "StackOptions",
    "StackStatus",
    "connect",
    "down",
    "logs",
    "reports",
    "restart",
    "status",
    "up",
]

FOLLOW_INTERVAL_S: Final = 0.1
DOWN_TIMEOUT_S: Final = 150.0
LOCK_WAIT_S: Final = 1.0

OnProgress = Callable[[StackStatus], None]


def up(options: StackOptions, on_progress: OnProgress) -> StackStatus:
    """Start a stack.

    Detached it returns when all is ready and the stack goes on; else when a signal or `down` has stopped it.
    ``on_progress`` gets the status whenever it changes, and a few times a second while starting.

    Raises:
        StackRunning: the data directory is in use.
        StackFailed: a part did not become ready; everything is stopped again.
        StackInterrupted: stopped before it was ready.
        StackError: secrets or port; see the tree.
    """
    options = replace(options, data_dir=options.data_dir.resolve())
    # A supervisor killed a moment ago may still be on its way out.
    if not asyncio.run(process.until(lambda: not state.is_locked(options.data_dir), LOCK_WAIT_S)):
        raise StackRunning(options.data_dir, state.read(options.data_dir).pid)
    if options.detach:
        return asyncio.run(_up_detached(options, on_progress))
    run(options, on_progress)
    return state.read(options.data_dir)


def run(options: StackOptions, on_progress: OnProgress) -> None:
    """Be the supervisor, in this process, until told to stop."""
    from admin.stack.stack import Stack

    async def live() -> None:
        await Stack(options, on_progress).run()

    asyncio.run(live())


def down(data_dir: Path) -> bool:
    """Stop the stack of a data directory in order, or what is left of one; returns whether anything ran."""
    return asyncio.run(_down(data_dir.resolve()))


def status(data_dir: Path) -> StackStatus:
    """What runs now, with memory and age of each part. Steps of the start are not among the parts."""
    found = state.read(data_dir.resolve())
    now_s = clock.now().timestamp()
    return replace(found, parts=tuple(state.measured(part, now_s) for part in found.parts))


def restart(data_dir: Path, worker: str, timeout_s: float, on_step: Callable[[str], None]) -> "Restarted":
    """Start one worker anew while the stack serves; raises StackDown, and as `admin.stack.restart` does."""
    from admin.stack.restart import restart as restart_worker

    return asyncio.run(restart_worker(connect(data_dir), worker, timeout_s, on_step))


def reports(data_dir: Path) -> "dict[str, tuple[str, WorkerReport | None]]":
    """Role of each worker of the running stack and what it says of itself; None for one that says nothing."""
    from admin.stack.restart import asked

    try:
        settings = connect(data_dir)
    except StackDown:
        return {}

    async def ask() -> "list[WorkerReport | None]":
        async with asked(settings) as engine:
            return await asyncio.gather(*(engine.report(worker.name) for worker in settings.workers))

    answers = asyncio.run(ask()) if settings.workers else []
    return {
        worker.name: (worker.role, report) for worker, report in zip(settings.workers, answers, strict=True)
    }


def logs(data_dir: Path, part: str | None = None, follow: bool = False) -> Iterator[str]:
    """Lines of one part's log or of all.

    Raises:
        PartMissing: that part has never logged here.
    """
    found = {path.stem: path for path in sorted(Layout(data_dir.resolve()).logs.glob("*.log"))}
    if part is not None and part not in found:
        raise PartMissing(part, tuple(found))
    return journal.read((found[part],) if part is not None else tuple(found.values()), follow)


def connect(data_dir: Path) -> Settings:
    """Settings to reach the running stack's database, Valkey and API.

    Raises:
        StackDown: nothing runs there.
    """
    data_dir = data_dir.resolve()
    if not state.read(data_dir).alive:
        raise StackDown(data_dir)
    try:
        return Settings.read(Layout(data_dir).settings)
    except SettingsMissing as error:
        raise StackDown(data_dir) from error


async def _up_detached(options: StackOptions, on_progress: OnProgress) -> StackStatus:
    layout = Layout(options.data_dir)
    child = _spawn_supervisor(layout, options)
    try:
        return await _followed(layout, child, on_progress)
    except asyncio.CancelledError:  # Ctrl-C while it starts: nothing half-started stays
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        await process.wait(child, DOWN_TIMEOUT_S)
        raise


def _spawn_supervisor(layout: Layout, options: StackOptions) -> subprocess.Popen[bytes]:
    layout.create()
    layout.state.unlink(missing_ok=True)
    write_private(layout.options, msgspec.json.encode(options, enc_hook=str))
    journal.rotate(layout.log("supervisor"))
    with layout.log("supervisor").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "admin.run.stack", str(layout.options)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


async def _followed(layout: Layout, child: subprocess.Popen[bytes], on_progress: OnProgress) -> StackStatus:
    """Watch a detached supervisor by its state file until it is ready or gone."""
    while True:
        gone = child.poll() is not None
        found = state.read(layout.data_dir)
        if found.pid == child.pid:
            on_progress(found)
            if found.phase == "ready":
                return found
        if gone:
            if found.failed_part is not None and found.error is not None:
                raise StackFailed(found.failed_part, found.error, found.error_tail)
            if child.returncode in (0, -signal.SIGTERM, -signal.SIGINT) or found.phase == "stopped":
                raise StackInterrupted
            raise StackFailed(
                "supervisor", f"ended with status {child.returncode}", journal.tail(layout.log("supervisor"))
            )
        await asyncio.sleep(FOLLOW_INTERVAL_S)


async def _down(data_dir: Path) -> bool:
    from admin.stack.plans import traces_of

    found = state.read(data_dir)
    ran = found.alive and state.is_locked(data_dir)
    if ran and found.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGTERM)
        if not await process.until(lambda: not state.is_locked(data_dir), DOWN_TIMEOUT_S):
            with contextlib.suppress(ProcessLookupError):
                os.kill(found.pid, signal.SIGKILL)
    left = await process.end_leftovers(traces_of(data_dir))
    if not state.is_locked(data_dir):
        places.leave_sockets(Layout(data_dir))
    return ran or left > 0
