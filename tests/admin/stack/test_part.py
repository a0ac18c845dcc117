"""One supervised part, with real child processes."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from admin.stack import process
from admin.stack.errors import StackFailed
from admin.stack.part import Part, Plan
from admin.stack.process import Command, Traces
from admin.stack.state import PartStatus

SERVES = "import pathlib, signal, os; pathlib.Path('{file}').write_text(str(os.getpid())); signal.pause()"
FORKS = "import subprocess; subprocess.Popen(['sleep', '600']); " + SERVES

History = list[PartStatus]


def names(file: Path, pid: int) -> bool:
    return file.exists() and file.read_text() == str(pid)


def python(script: str) -> Command:
    return Command((sys.executable, "-c", script), {"PATH": "/usr/bin:/bin"})


def plan_of(script: str, file: Path, **changes: Any) -> Plan:
    async def prepare() -> Command:
        return python(script.format(file=file))

    async def ready(pid: int) -> bool:
        return names(file, pid)

    return replace(Plan("demo", prepare, ready, ready_timeout_s=20.0, stop_timeout_s=5.0), **changes)


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[Callable[[Plan], tuple[Part, History]]]:
    parts: list[Part] = []

    def make(plan: Plan) -> tuple[Part, History]:
        history: History = []
        part = Part(plan, tmp_path / "demo.log", lambda: history.append(part.status))
        parts.append(part)
        return part, history

    yield make
    for part in parts:
        await part.stop()


Make = Callable[[Plan], tuple[Part, History]]


async def test_a_killed_part_is_started_again(started: Make, tmp_path: Path) -> None:
    part, _ = started(plan_of(SERVES, tmp_path / "pid"))
    await part.start()
    first = part.status.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await process.until(lambda: part.status.restarts == 1 and part.status.state == "ready", 10.0)
    assert part.status.pid not in (None, first)


async def test_an_exit_with_status_zero_is_a_death_like_others(started: Make, tmp_path: Path) -> None:
    script = "import os, signal; signal.signal(signal.SIGUSR1, lambda *_: os._exit(0)); " + SERVES
    part, history = started(plan_of(script, tmp_path / "pid"))
    await part.start()
    pid = part.status.pid
    assert pid is not None
    os.kill(pid, signal.SIGUSR1)
    assert await process.until(lambda: part.status.restarts == 1 and part.status.state == "ready", 10.0)
    assert any("ended with status 0" in status.detail for status in history)


async def test_a_part_that_never_becomes_ready_fails_with_its_last_words(
    started: Make, tmp_path: Path
) -> None:
    part, _ = started(plan_of("raise SystemExit('no such model')", tmp_path / "pid", tries=2))
    with pytest.raises(StackFailed) as caught:
        await part.start()
    assert caught.value.part == "demo"
    assert caught.value.tail == "no such model"  # of the last life alone
    assert part.status.state == "failed"


async def test_a_part_that_hangs_while_starting_is_ended(started: Make, tmp_path: Path) -> None:
    part, _ = started(
        plan_of("import signal; signal.pause()", tmp_path / "pid", tries=1, ready_timeout_s=0.3)
    )
    with pytest.raises(StackFailed, match="not ready"):
        await part.start()


async def test_what_a_part_has_started_goes_with_it(started: Make, tmp_path: Path) -> None:
    part, _ = started(plan_of(FORKS, tmp_path / "pid"))
    await part.start()
    assert part.status.pid is not None
    below = psutil.Process(part.status.pid).children()
    assert below
    os.kill(part.status.pid, signal.SIGKILL)
    assert await process.until(lambda: not any(_lives(child) for child in below), 5.0)


async def test_a_stopped_part_stays_stopped(started: Make, tmp_path: Path) -> None:
    part, _ = started(plan_of(SERVES, tmp_path / "pid"))
    await part.start()
    pid = part.status.pid
    assert pid is not None
    await part.stop()
    assert part.status.state == "stopped"
    assert not psutil.pid_exists(pid)


async def test_a_part_that_ignores_its_stop_signal_is_killed(started: Make, tmp_path: Path) -> None:
    deaf = SERVES.replace("signal.pause()", "[signal.pause() for _ in iter(int, 1)]")
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + deaf
    part, _ = started(plan_of(deaf, tmp_path / "pid", stop_timeout_s=0.3))
    await part.start()
    pid = part.status.pid
    assert pid is not None
    await part.stop()
    assert not psutil.pid_exists(pid)


async def test_a_child_dies_with_its_parent_however_that_dies(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = (
        "import sys, signal; from admin.stack import process; from admin.stack.process import Command\n"
        f"child = process.spawn(Command((sys.executable, '-c', {SERVES.format(file=file)!r}), {{}}), 2)\n"
        "signal.pause()"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[3])}
    parent = process.spawn(Command((sys.executable, "-c", script), environment), 2)
    assert await process.until(lambda: file.exists() and file.read_text() != "", 10.0)
    child = psutil.Process(int(file.read_text()))
    parent.kill()
    parent.wait()
    assert await process.until(lambda: not _lives(child), 5.0)


async def test_leftovers_are_found_by_their_mark_and_ended() -> None:
    command = replace(python("import signal; signal.pause()"), environment={"KVITTO_STACK": "/nowhere/d"})
    child = process.spawn(command, 2)
    try:
        assert await process.end_leftovers(Traces(("KVITTO_STACK", "/nowhere/other"))) == 0
        assert child.poll() is None
        assert await process.end_leftovers(Traces(("KVITTO_STACK", "/nowhere/d"))) == 1
    finally:
        child.kill()
        child.wait()


def _lives(candidate: psutil.Process) -> bool:
    try:
        return candidate.is_running() and candidate.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
