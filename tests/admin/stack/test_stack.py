"""The stack of cheap parts, whole and real: up, kill -9 of anything, down."""

import asyncio
import json
import os
import signal
import socket
import stat
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from admin.stack import process, supervisor
from admin.stack.errors import StackDown, StackFailed, StackRunning
from admin.stack.plans import traces_of
from admin.stack.postgres import STATUS_LINE
from admin.stack.state import StackOptions, StackStatus

PARTS = ("postgres", "valkey", "gateway-1", "gateway-2", "jobs")
# That a detached supervisor outlives who started it is its purpose.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def up(data_dir: Path, model_dir: Path, port: int | None = None) -> StackStatus:
    options = StackOptions(
        data_dir, port or free_port(), model=str(model_dir), engine=False, detach=True, gateways=2
    )
    return supervisor.up(options, lambda _status: None)


def until(true: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    return asyncio.run(process.until(true, timeout_s))


def pids(data_dir: Path) -> dict[str, int]:
    return {
        part.name: part.pid
        for part in supervisor.status(data_dir).parts
        if part.pid and part.state == "ready"
    }


def kill_supervisor(data_dir: Path) -> None:
    supervising = supervisor.status(data_dir).pid
    assert supervising is not None
    os.kill(supervising, signal.SIGKILL)


def left(data_dir: Path) -> list[str]:
    """What of a stack still runs; pids, for a process may end while it is looked at."""
    return [str(p.pid) for p in process.leftovers(traces_of(data_dir))]


@pytest.fixture
def data_dir(short_folder: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    place = short_folder / f"d{abs(hash(request.node.name)) % 10**8}"
    yield place
    supervisor.down(place)


@pytest.fixture(scope="module")
def running(short_folder: Path, model_dir: Path) -> Iterator[Path]:
    place = short_folder / "running"
    up(place, model_dir)
    yield place
    supervisor.down(place)


def test_all_parts_are_ready_and_measured(running: Path) -> None:
    status = supervisor.status(running)
    assert status.phase == "ready"
    assert {part.name: part.state for part in status.parts} == dict.fromkeys(PARTS, "ready")
    for part in status.parts:
        assert part.memory_bytes is not None
        assert part.memory_bytes > 2**20
        assert part.uptime_s is not None


def test_the_credentials_reach_the_api_and_belong_to_this_user(running: Path) -> None:
    file = running / "credentials.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    credentials = json.loads(file.read_text())
    assert set(credentials) == {"base_url", "api_key", "console_url", "admin_email", "admin_password"}
    request = urllib.request.Request(  # noqa: S310 - our own address.
        f"{credentials['base_url']}/models", headers={"Authorization": f"Bearer {credentials['api_key']}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own address.
        assert json.load(answer)["object"] == "list"


def test_no_secret_is_on_a_command_line(running: Path) -> None:
    secrets = [file.read_text() for file in (running / "secrets").iterdir()]
    for found in process.leftovers(traces_of(running)):
        assert not any(secret in " ".join(found.cmdline()) for secret in secrets)


def test_a_second_up_says_who_runs_already(running: Path, model_dir: Path) -> None:
    with pytest.raises(StackRunning, match="kvitto down"):
        up(running, model_dir)


def test_a_port_in_use_is_said_and_leaves_nothing(running: Path, data_dir: Path, model_dir: Path) -> None:
    taken = supervisor.connect(running).port
    with pytest.raises(StackFailed, match="--port"):
        up(data_dir, model_dir, taken)
    assert left(data_dir) == []


@pytest.mark.parametrize("name", PARTS)
def test_a_killed_part_comes_back(running: Path, name: str) -> None:
    before = pids(running)
    os.kill(before[name], signal.SIGKILL)
    assert until(lambda: pids(running).get(name, before[name]) != before[name])
    after = pids(running)
    assert {part: pid for part, pid in after.items() if part != name} == {
        part: pid for part, pid in before.items() if part != name
    }
    test_the_credentials_reach_the_api_and_belong_to_this_user(running)


def test_a_killed_supervisor_leaves_no_orphan_and_the_next_up_is_clean(
    data_dir: Path, model_dir: Path
) -> None:
    up(data_dir, model_dir)
    key = json.loads((data_dir / "credentials.json").read_text())["api_key"]
    kill_supervisor(data_dir)
    assert until(lambda: left(data_dir) == [])
    assert supervisor.down(data_dir) is False
    with pytest.raises(StackDown):
        supervisor.connect(data_dir)
    assert up(data_dir, model_dir).phase == "ready"
    assert json.loads((data_dir / "credentials.json").read_text())["api_key"] == key
    test_the_credentials_reach_the_api_and_belong_to_this_user(data_dir)


def test_everything_killed_at_once_starts_clean(data_dir: Path, model_dir: Path) -> None:
    up(data_dir, model_dir)
    supervising = supervisor.status(data_dir).pid
    assert supervising is not None
    os.kill(supervising, signal.SIGSTOP)  # so that it starts nothing again
    for pid in pids(data_dir).values():
        os.kill(pid, signal.SIGKILL)
    os.kill(supervising, signal.SIGKILL)
    # The pid file of the killed Postgres still says ready.
    assert (data_dir / "postgres" / "postmaster.pid").read_text().splitlines()[STATUS_LINE].strip() == "ready"
    assert up(data_dir, model_dir).phase == "ready"


def test_down_leaves_nothing_and_says_whether_anything_ran(data_dir: Path, model_dir: Path) -> None:
    status = up(data_dir, model_dir)
    assert supervisor.down(data_dir) is True
    assert left(data_dir) == []
    assert supervisor.status(data_dir).phase == "stopped"
    assert not (data_dir / "run" / "settings.json").exists()
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", port_of(status)), 2):
        pass
    assert supervisor.down(data_dir) is False
    assert "database system is shut down" in (data_dir / "logs" / "postgres.log").read_text()


def test_a_start_that_fails_stops_what_had_started_and_shows_the_last_words(
    data_dir: Path, model_dir: Path
) -> None:
    up(data_dir, model_dir)
    supervisor.down(data_dir)
    (data_dir / "secrets" / "postgres_role").write_text("forgotten")
    with pytest.raises(StackFailed) as caught:
        up(data_dir, model_dir)
    assert caught.value.part == "setup"
    assert caught.value.tail
    assert left(data_dir) == []


def test_logs_name_their_part(running: Path) -> None:
    assert any(line.startswith("postgres") for line in supervisor.logs(running))
    assert all("| " not in line[:12] for line in supervisor.logs(running, "valkey"))


def port_of(status: StackStatus) -> int:
    assert status.base_url is not None
    return int(status.base_url.rsplit(":", 1)[1].split("/")[0])
