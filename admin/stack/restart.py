"""One worker started anew while the stack serves: drained first, so that nobody's answer breaks off."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from admin import clock
from admin.settings import Settings, WorkerSettings
from admin.stack import state
from admin.stack.errors import StackFailed, WorkerMissing
from admin.stack.plans import WORKER_READY_S, WORKER_STOP_S
from admin.stack.state import PartStatus
from engine.api import Control, WorkerAddress

LOOK_INTERVAL_S: Final = 0.2
# Gateways read reports once a second; a request may still be on its way to a worker that has just said no.
ROUTING_S: Final = 2.0

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Restarted:
    """How it went: whether nothing ran any more when the worker was stopped, and its new process."""

    drained: bool
    pid: int | None
    took_s: float


def control_of(settings: Settings, worker: WorkerSettings) -> Control:
    """A worker's side door, opened with the stack's secret."""
    address = WorkerAddress(worker.name, worker.role, worker.socket)
    return Control(address, settings.worker_secret, lambda: int(clock.now().timestamp()))


async def restart(settings: Settings, name: str, timeout_s: float, on_step: OnStep) -> Restarted:
    """Drain a worker, stop it, and wait until the supervisor has it ready again.

    Args:
        settings: of the running stack.
        name: the worker's.
        timeout_s: how long what runs there may take; then it is stopped all the same, and has its own
            ``shutdown_timeout_s`` to finish. A worker that does not answer is not waited for.
        on_step: told each step in words.

    Raises:
        WorkerMissing: the stack has no such worker.
        StackFailed: it did not come back.
    """
    begun_s = monotonic()
    workers = {worker.name: worker for worker in settings.workers}
    before = _part(settings.data_dir, name)
    if name not in workers or before is None:
        raise WorkerMissing(name, tuple(workers))
    on_step(f"{name} drains: new requests go elsewhere")
    drained = await _drained(control_of(settings, workers[name]), timeout_s)
    on_step(f"{name} stops" if drained else f"{name} stops, though it has not said that all there has ended")
    if before.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(before.pid, signal.SIGTERM)
    deadline_s = monotonic() + WORKER_STOP_S + WORKER_READY_S
    while (after := _part(settings.data_dir, name)) is None or not _anew(before, after):
        if monotonic() > deadline_s:
            raise StackFailed(name, "did not come back: `kvitto logs` has its last words")
        await asyncio.sleep(LOOK_INTERVAL_S)
    return Restarted(drained, after.pid, monotonic() - begun_s)


async def _drained(control: Control, timeout_s: float) -> bool:
    """Wait until it says that nothing runs or waits there; False when it does not in time."""
    begun_s = monotonic()
    if not await control.drain():
        return False
    await asyncio.sleep(ROUTING_S)
    while (report := await control.report()) is not None:
        if report.running == report.waiting == 0:
            return True
        if monotonic() - begun_s > timeout_s:
            return False
        await asyncio.sleep(LOOK_INTERVAL_S)
    return False


def _part(data_dir: Path, name: str) -> PartStatus | None:
    return next((part for part in state.read(data_dir).parts if part.name == name), None)


def _anew(before: PartStatus, after: PartStatus) -> bool:
    return after.state == "ready" and after.pid != before.pid
