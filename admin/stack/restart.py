"""One worker started anew while the stack serves: drained first, so that nobody's answer breaks off."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from admin.engine import engine_options
from admin.settings import Settings
from admin.stack import state
from admin.stack.errors import StackFailed, WorkerMissing
from admin.stack.plans import WORKER_READY_S, WORKER_STOP_S
from admin.stack.state import PartStatus
from engine.api import Engine, EngineError

LOOK_INTERVAL_S: Final = 0.2
# Gateways read reports once a second: a request may still be on its way to a worker that has just said no,
# and one that is ready again is not known to be at once.
ROUTING_S: Final = 2.0

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Restarted:
    """How it went: whether nothing ran any more when the worker was stopped, and its new process."""

    drained: bool
    pid: int | None
    took_s: float


@contextlib.asynccontextmanager
async def asked(settings: Settings) -> AsyncIterator[Engine]:
    """The engine of a running stack, for one command that sends no requests."""
    engine = Engine(engine_options(settings))
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


async def restart(settings: Settings, name: str, timeout_s: float, on_step: OnStep) -> Restarted:
    """Drain a worker, stop it, and wait until it is ready again and gateways know.

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
    workers = tuple(worker.name for worker in settings.workers)
    before = _part(settings.data_dir, name)
    if name not in workers or before is None:
        raise WorkerMissing(name, workers)
    on_step(f"{name} drains: new requests go elsewhere")
    async with asked(settings) as engine:
        drained = await _drained(engine, name, timeout_s)
    on_step(f"{name} stops" if drained else f"{name} stops, though it has not said that all there has ended")
    if before.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(before.pid, signal.SIGTERM)
    deadline_s = monotonic() + WORKER_STOP_S + WORKER_READY_S
    while (after := _part(settings.data_dir, name)) is None or not _anew(before, after):
        if monotonic() > deadline_s:
            raise StackFailed(name, "did not come back: `kvitto logs` has its last words")
        await asyncio.sleep(LOOK_INTERVAL_S)
    await asyncio.sleep(ROUTING_S)
    return Restarted(drained, after.pid, monotonic() - begun_s)


async def _drained(engine: Engine, name: str, timeout_s: float) -> bool:
    """Wait until it says that nothing runs or waits there; False when it does not in time."""
    begun_s = monotonic()
    try:
        await engine.drain(name)
    except EngineError:
        return False
    await asyncio.sleep(ROUTING_S)
    while (report := await engine.report(name)) is not None:
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
