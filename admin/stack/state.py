"""What a stack says about itself: options in, status out, and the files that carry both."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil

from admin.settings import write_private
from admin.stack.errors import StackRunning
from engine.shapes.shape import Shape

Phase = Literal["starting", "ready", "stopping", "stopped", "failed"]
PartState = Literal["waiting", "starting", "ready", "restarting", "stopping", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What `kvitto up` was asked for. Without ``engine`` the workers of the shape are not started.

    ``gateways`` processes serve the API, all at one port.
    """

    data_dir: Path
    port: int = 8080
    model: str | None = None
    shape: Shape = field(default_factory=lambda: Shape.mono(1, ()))
    engine: bool = True
    detach: bool = False
    host: str = "127.0.0.1"
    gateways: int = 1

    @property
    def gateway_names(self) -> tuple[str, ...]:
        """Names of the gateways as parts."""
        if self.gateways == 1:
            return ("gateway",)
        return tuple(f"gateway-{number}" for number in range(1, self.gateways + 1))


@dataclass(frozen=True, slots=True)
class PartStatus:
    """One part, or one step of the start. Steps and servers that the operator brings have no pid."""

    name: str
    state: PartState = "waiting"
    pid: int | None = None
    since_s: float | None = None  # Unix time of the start of its process
    restarts: int = 0
    address: str | None = None
    detail: str = ""
    uptime_s: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StackStatus:
    """The whole stack. ``parts`` are what stays, ``steps`` what a start goes through once.

    ``pid`` and ``pid_started_s`` (`started_s`) name its supervisor.
    """

    data_dir: Path
    phase: Phase = "stopped"
    pid: int | None = None
    pid_started_s: float | None = None
    base_url: str | None = None
    served_name: str | None = None
    failed_part: str | None = None
    error: str | None = None
    error_tail: str = ""
    parts: tuple[PartStatus, ...] = ()
    steps: tuple[PartStatus, ...] = ()

    def write(self) -> None:
        """Replace the state file in one step."""
        write_private(Layout(self.data_dir).state, msgspec.json.encode(self, enc_hook=str))

    @property
    def alive(self) -> bool:
        """Say whether the supervisor that wrote this still runs."""
        return self.pid is not None and same_process(self.pid, self.pid_started_s)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are in a data directory."""

    data_dir: Path

    @property
    def run(self) -> Path:
        """Folder of what only a running stack means."""
        return self.data_dir / "run"

    @property
    def state(self) -> Path:
        """The supervisor's own account of the stack."""
        return self.run / "state.json"

    @property
    def settings(self) -> Path:
        """Settings of the parts (0600)."""
        return self.run / "settings.json"

    @property
    def options(self) -> Path:
        """Options of a detached supervisor."""
        return self.run / "options.json"

    @property
    def lock(self) -> Path:
        """Held by the supervisor as long as it lives."""
        return self.run / "lock"

    @property
    def logs(self) -> Path:
        """Folder of the parts' logs."""
        return self.data_dir / "logs"

    @property
    def credentials(self) -> Path:
        """Credentials of the demo tenant (0600)."""
        return self.data_dir / "credentials.json"

    def log(self, part: str) -> Path:
        """Log of one part."""
        return self.logs / f"{part}.log"

    def create(self) -> None:
        """Make the folders. As root others may pass through, as Postgres's account must, but not list."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.data_dir.chmod(0o711 if os.geteuid() == 0 else 0o700)
        for folder in (self.run, self.logs):
            folder.mkdir(mode=0o700, exist_ok=True)


def read_options(path: Path) -> StackOptions:
    """Read the options that `up --detach` left for its supervisor."""
    return msgspec.json.decode(path.read_bytes(), type=StackOptions, dec_hook=_path)


def read(data_dir: Path) -> StackStatus:
    """The last written state; that of a dead supervisor says stopped (a failure stays readable)."""
    try:
        status = msgspec.json.decode(Layout(data_dir).state.read_bytes(), type=StackStatus, dec_hook=_path)
    except (OSError, msgspec.DecodeError):
        return StackStatus(data_dir)
    if status.alive:
        return status
    phase: Phase = "failed" if status.phase == "failed" else "stopped"
    return replace(status, data_dir=data_dir, phase=phase, pid=None, parts=(), steps=())


def measured(part: PartStatus, now_s: float) -> PartStatus:
    """Add a part's age and memory (its process and all below it, shared pages counted once)."""
    if part.pid is None:
        return part
    uptime_s = None if part.since_s is None else max(0.0, now_s - part.since_s)
    return replace(part, uptime_s=uptime_s, memory_bytes=_memory_bytes(part.pid))


def started_s(process: psutil.Process) -> float:
    """When a process started, in seconds since the machine did: setting the clock does not move that."""
    return float(process.create_time() - psutil.boot_time())


def same_process(pid: int, begun_s: float | None) -> bool:
    """Say whether ``pid`` is still the process that started then (`started_s`; pids are used again)."""
    try:
        found = psutil.Process(pid)
        alive = found.status() != psutil.STATUS_ZOMBIE
        return alive and (begun_s is None or abs(started_s(found) - begun_s) < 1.0)
    except psutil.NoSuchProcess:
        return False


def is_locked(data_dir: Path) -> bool:
    """Say whether a supervisor holds the data directory."""
    try:
        with Layout(data_dir).lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Hold a data directory for one stack; the kernel lets go when the holder dies.

    Raises:
        StackRunning: another supervisor holds it.
    """
    with Layout(data_dir).lock.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackRunning(data_dir, read(data_dir).pid) from None
        yield


def _memory_bytes(pid: int) -> int | None:
    total = 0
    try:
        top = psutil.Process(pid)
        family = [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return None
    for member in family:
        with suppress(psutil.NoSuchProcess):
            total += _own_bytes(member)
    return total


def _own_bytes(member: psutil.Process) -> int:
    try:
        return int(member.memory_full_info().pss)
    except (psutil.AccessDenied, AttributeError):
        return int(member.memory_info().rss)


def _path(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise TypeError(kind.__name__)
