"""Child processes that never outlive their parent: accounts, death signals, stopping whole groups."""

import asyncio
import contextlib
import ctypes
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import psutil

POLL_INTERVAL_S: Final = 0.05
LEFTOVERS_TIMEOUT_S: Final = 10.0
OUTPUT_KEPT_BYTES: Final = 65_536
PR_SET_PDEATHSIG: Final = 1
ACCOUNTS_UNPRIVILEGED: Final = ("kvitto", "postgres", "nobody")

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class AccountMissing(RuntimeError):
    """Running as root, and no unprivileged account exists to run Postgres by."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine that a child runs as."""

    name: str
    uid: int
    gid: int

    @classmethod
    def of(cls, entry: pwd.struct_passwd) -> "Account":
        """Read one from a row of the user database."""
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid)


@dataclass(frozen=True, slots=True)
class Command:
    """What to start and how to end it.

    ``environment`` is all of it. ``death_signal`` reaches the child when this process dies, however
    it dies (Linux); it must be one that ends the child. ``account`` needs root.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    folder: Path | None = None
    account: Account | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL
    open_fds: tuple[int, ...] = ()  # descriptors the child gets, under the same numbers


def unprivileged_account() -> Account | None:
    """Who runs what refuses to run as root: None when this process is not root.

    Raises:
        AccountMissing: no account out of ``ACCOUNTS_UNPRIVILEGED`` exists.
    """
    if os.geteuid() != 0:
        return None
    for name in ACCOUNTS_UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            return Account.of(pwd.getpwnam(name))
    raise AccountMissing(f"running as root needs one of the accounts {', '.join(ACCOUNTS_UNPRIVILEGED)}")


def owner_of(path: Path) -> Account:
    """The account that owns a path (KeyError when its number has no name)."""
    return Account.of(pwd.getpwuid(path.stat().st_uid))


def reachable(path: Path, account: Account) -> bool:
    """Say whether an account may pass through every folder above ``path``."""
    for folder in path.resolve().parents:
        status = folder.stat()
        if status.st_uid == account.uid:
            bit = 0o100
        elif status.st_gid == account.gid:
            bit = 0o010
        else:
            bit = 0o001
        if not status.st_mode & bit:
            return False
    return True


def spawn(command: Command, output: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """Start a child as the leader of its own session, tied to the life of this process.

    Call it from the main thread only: Linux sends the death signal when the *thread* that forked ends.

    Args:
        command: what to start.
        output: where its standard output and error go.
    """
    return subprocess.Popen(
        command.argv, stdin=subprocess.DEVNULL, stdout=output, pass_fds=command.open_fds, **_bearings(command)
    )


def _bearings(command: Command) -> dict[str, Any]:
    """What every child of ours gets: environment, folder, account, a session and an end with its parent."""
    account = command.account
    return {
        "stderr": subprocess.STDOUT,
        "env": dict(command.environment),
        "cwd": command.folder,
        "start_new_session": True,
        "user": account.uid if account else None,
        "group": account.gid if account else None,
        "extra_groups": [] if account else None,
        # Runs after the change of user, which would clear the death signal; prctl has no other door.
        "preexec_fn": _tie_to_parent(os.getpid(), command.death_signal),
    }


def _tie_to_parent(parent: int, death_signal: signal.Signals) -> Callable[[], None] | None:
    if _libc is None:
        return None

    def tie() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return tie


async def finish(
    command: Command, input_text: bytes = b"", on_output: Callable[[bytes], None] | None = None
) -> tuple[int, bytes]:
    """Run a command to its end.

    Args:
        command: what to run.
        input_text: its standard input.
        on_output: called with each piece it prints, as it comes.

    Returns:
        Exit status, and the last ``OUTPUT_KEPT_BYTES`` of what it printed.
    """
    child = await asyncio.create_subprocess_exec(
        *command.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **_bearings(command)
    )
    assert child.stdin is not None
    assert child.stdout is not None
    printed = b""
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            child.stdin.write(input_text)
            await child.stdin.drain()
            child.stdin.close()
        while piece := await child.stdout.read(65_536):
            printed = (printed + piece)[-OUTPUT_KEPT_BYTES:]
            if on_output is not None:
                on_output(piece)
        return await child.wait(), printed
    finally:
        if child.returncode is None:
            end_group(child.pid)


async def until(true: Callable[[], bool], timeout_s: float) -> bool:
    """Look again and again until something outside this process is so; False when it is not in time."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while not true():
        if asyncio.get_running_loop().time() >= deadline_s:
            return False
        await asyncio.sleep(POLL_INTERVAL_S)
    return True


async def wait(child: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait until a child has ended; False when it still runs after ``timeout_s``."""
    return await until(lambda: child.poll() is not None, timeout_s)


async def stop(child: subprocess.Popen[bytes], stop_signal: signal.Signals, timeout_s: float) -> None:
    """End a child politely, then its whole group for certain. Safe on one that has already ended."""
    if child.poll() is None:
        child.send_signal(stop_signal)
        await wait(child, timeout_s)
    end_group(child.pid)
    await wait(child, 10.0)


def end_group(leader: int) -> None:
    """Kill what is left of a child's process group: nothing of a part survives its leader."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def ended(status: int) -> str:
    """Say in words how a child ended."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


@dataclass(frozen=True, slots=True)
class Traces:
    """What the processes of one stack are known by, also after their supervisor is gone.

    ``mark`` is a variable of their environment. Servers that overwrite theirs are in ``homes``: name of the
    program and folder it works in.
    """

    mark: tuple[str, str] | None = None
    homes: tuple[tuple[str, Path], ...] = ()

    def lead_to(self, candidate: psutil.Process) -> bool:
        """Say whether a process is one of them."""
        name, folder = candidate.name(), candidate.cwd()
        if any(name == program and folder == str(home) for program, home in self.homes):
            return True
        return self.mark is not None and candidate.environ().get(self.mark[0]) == self.mark[1]


def leftovers(traces: Traces) -> list[psutil.Process]:
    """Processes of a stack that still run (this one is never among them)."""
    found = []
    for candidate in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if candidate.pid != os.getpid() and traces.lead_to(candidate):
                found.append(candidate)
    return found


async def end_leftovers(traces: Traces) -> int:
    """Kill what an earlier run left behind and wait until it is gone; returns how many there were."""
    found = leftovers(traces)
    for left in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()
    if found:
        await until(lambda: not leftovers(traces), LEFTOVERS_TIMEOUT_S)
    return len(found)
