"""`kvitto restart`: a supervised process with a worker's side door is drained, stopped, and ready again."""

import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from admin.settings import Settings, WorkerSettings
from admin.stack import probe
from admin.stack.errors import WorkerMissing
from admin.stack.part import Part, Plan
from admin.stack.process import Command
from admin.stack.restart import asked, restart
from admin.stack.state import Layout, StackStatus, started_s
from engine.api import WorkerReport
from tests.deployment import RING

ROOT = Path(__file__).parents[3]
SECRET = b"s" * 32
# What a worker does about draining, without vLLM: one request fewer runs each time it is asked.
WORKER = """
import sys, time
from aiohttp import web
from engine import mac
from engine.wire import DRAIN_PATH, REPORT_PATH, WorkerReport

socket, acts, running = sys.argv[1], open(sys.argv[2], "a", buffering=1), int(sys.argv[3])
draining = False

def allowed(request, body):
    header = request.headers.get(mac.MAC_HEADER, "")
    return mac.holds(b"s" * 32, header, request.method, request.path_qs, body, int(time.time()))

async def drain(request):
    global draining
    body = await request.read()
    if not allowed(request, body):
        return web.Response(status=401)
    draining = (await request.json())["draining"]
    print("drain", file=acts)
    return web.json_response({})

async def report(request):
    global running
    if not allowed(request, b""):
        return web.Response(status=401)
    print("running", running, file=acts)
    now = WorkerReport(running, 0, 0, 0, draining, "")
    running = max(0, running - draining)
    return web.json_response(now.to_json())

async def health(_):
    return web.Response()

async def stopped(_):
    print("stopped", file=acts)

app = web.Application()
app.add_routes([web.post(DRAIN_PATH, drain), web.get(REPORT_PATH, report), web.get("/health", health)])
app.on_shutdown.append(stopped)
web.run_app(app, path=socket, print=None)
"""


class Rig:
    """A part as the supervisor keeps it, and its state file."""

    def __init__(self, folder: Path, running: int, secret: bytes = SECRET) -> None:
        self.layout = Layout(folder)
        self.layout.create()
        self.acts_file = folder / "acts"
        worker = WorkerSettings("mono-1", "both", folder / "w.sock", folder / "w.certificate")
        self.settings = Settings(
            data_dir=folder,
            database_url="",
            valkey_url="",
            host="127.0.0.1",
            port=1,
            model_dir=None,
            served_name="m",
            workers=(worker,),
            key_pepper=SECRET,
            salt_secret=SECRET,
            worker_secret=secret,
            deployment_ring=RING,
        )

        async def prepare() -> Command:
            worker.socket.unlink(missing_ok=True)
            argv = (sys.executable, "-c", WORKER, str(worker.socket), str(self.acts_file), str(running))
            return Command(argv, {"PYTHONPATH": str(ROOT), "PATH": os.defpath})

        async def ready(_pid: int) -> bool:
            return await probe.over_socket(worker.socket, "/health")

        self.part = Part(Plan("mono-1", prepare, ready), self.layout.log("mono-1"), self.show)

    def show(self) -> None:
        me = psutil.Process()
        StackStatus(self.layout.data_dir, "ready", me.pid, started_s(me), parts=(self.part.status,)).write()

    @property
    def acts(self) -> list[str]:
        return self.acts_file.read_text().splitlines()

    async def report(self) -> WorkerReport | None:
        async with asked(self.settings) as engine:
            return await engine.report("mono-1")

    async def restart(self, timeout_s: float = 30.0, name: str = "mono-1") -> tuple[bool, list[str]]:
        steps: list[str] = []
        done = await restart(self.settings, name, timeout_s, steps.append)
        assert done.pid == self.part.status.pid
        return done.drained, steps


Start = Callable[..., Coroutine[Any, Any, Rig]]


@pytest.fixture
async def rig(short_folder: Path) -> AsyncIterator[Start]:
    rigs: list[Rig] = []

    async def start(running: int, secret: bytes = SECRET) -> Rig:
        made = Rig(short_folder / secrets.token_hex(4), running, secret)
        rigs.append(made)
        await made.part.start()
        return made

    yield start
    for made in rigs:
        await made.part.stop()


async def test_a_worker_is_stopped_once_nothing_runs_there_and_comes_back_undrained(rig: Start) -> None:
    started = await rig(running=3)
    before = started.part.status.pid
    drained, steps = await started.restart()
    assert drained
    stopped = started.acts.index("stopped")
    assert started.acts.index("drain") < stopped
    assert started.acts[stopped - 1] == "running 0"
    assert started.part.status.pid != before
    assert started.part.status.restarts == 1
    assert len(steps) == 2
    report = await started.report()
    assert report is not None
    assert not report.draining


async def test_a_worker_that_is_never_idle_is_stopped_after_the_timeout(rig: Start) -> None:
    started = await rig(running=10_000)
    drained, steps = await started.restart(timeout_s=0.0)
    assert not drained
    assert "not said" in steps[-1]
    assert "stopped" in started.acts


async def test_a_worker_that_does_not_take_us_for_the_deployment_is_restarted_undrained(rig: Start) -> None:
    started = await rig(running=1, secret=b"x" * 32)
    assert await started.report() is None
    drained, _ = await started.restart()
    assert not drained
    assert started.acts == ["stopped"]


async def test_a_name_that_is_no_workers_says_which_there_are(rig: Start) -> None:
    started = await rig(running=0)
    with pytest.raises(WorkerMissing, match="mono-1"):
        await started.restart(name="decode-1")
    assert started.part.status.restarts == 0
