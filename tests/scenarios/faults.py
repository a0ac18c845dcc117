"""What befalls a stack: parts are killed, or stopped for a while; what Valkey holds is wiped."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

import psutil

from admin.stack import state
from gateway.valkey import Valkey
from tests.chaos.faults import Blow
from tests.e2e.stack import Stack

STOPPED_S: Final = (0.5, 3.0)
SECONDS_A_FAULT: Final = 2.5
LOOK_S: Final = 0.05
SESSIONS: Final = "postgres: kvitto "  # those of the gateways and the jobs, as they are titled

Deed = Callable[[Stack, random.Random], Awaitable[str]]


async def kill_gateway(stack: Stack, chosen: random.Random) -> str:
    name = chosen.choice([name for name in _names(stack) if name.startswith("gateway")])
    os.kill((await _ready(stack, name)).pid, signal.SIGKILL)
    return f"killed {name}"


async def kill_postgres(stack: Stack, _: random.Random) -> str:
    os.kill((await _ready(stack, "postgres")).pid, signal.SIGKILL)
    return "killed postgres"


async def kill_session(stack: Stack, chosen: random.Random) -> str:
    """One backend dies: Postgres ends all the others, and recovers."""
    postmaster = await _ready(stack, "postgres")
    sessions = [child for child in postmaster.children() if _title(child).startswith(SESSIONS)]
    if sessions:
        os.kill(chosen.choice(sessions).pid, signal.SIGKILL)
    return "killed a session of postgres"


async def wipe_valkey(stack: Stack, _: random.Random) -> str:
    valkey = Valkey.connect(stack.settings.valkey_url)
    try:
        await valkey.call("FLUSHALL")
        await valkey.call("SCRIPT", "FLUSH")
    finally:
        await valkey.close()
    return "wiped valkey"


def stop(prefix: str) -> Deed:
    """A deed: SIGSTOP to a part with all below it, SIGCONT after a while."""

    async def stop_one(stack: Stack, chosen: random.Random) -> str:
        name = chosen.choice([name for name in _names(stack) if name.startswith(prefix)])
        top = await _ready(stack, name)
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [top, *top.children(recursive=True)]
            try:
                _signal(family, signal.SIGSTOP)
                await asyncio.sleep(chosen.uniform(*STOPPED_S))
            finally:
                _signal(family, signal.SIGCONT)
        return f"stopped {name}"

    return stop_one


# The shorter the storm, the fewer of them, from the first on.
DEEDS: Final = (
    kill_gateway,
    kill_postgres,
    wipe_valkey,
    stop("gateway"),
    stop("mono"),
    kill_gateway,
    stop("postgres"),
    kill_session,
    stop("jobs"),
    kill_gateway,
    kill_postgres,
    stop("gateway"),
    kill_gateway,
    stop("valkey"),
)
ESSENTIAL: Final = 4


@dataclass(frozen=True, slots=True)
class Due:
    """A deed and its moment, in seconds from the start. ``seed`` chooses whom it befalls."""

    at_s: float
    deed: Deed
    seed: int


def weather(seed: int, lasts_s: float) -> list[Due]:
    """What happens in a storm of so many seconds: a gateway and Postgres die in it, Valkey is wiped once."""
    chosen = random.Random(seed)  # noqa: S311 -- repeatable faults, no secret
    count = min(len(DEEDS), max(ESSENTIAL, round(lasts_s / SECONDS_A_FAULT)))
    moments = sorted(chosen.uniform(0.05, 0.95) * lasts_s for _ in range(count))
    deeds = chosen.sample(DEEDS[:count], count)
    return [Due(at_s, deed, chosen.randrange(2**32)) for at_s, deed in zip(moments, deeds, strict=True)]


async def blow(stack: Stack, seed: int, lasts_s: float, blows: list[Blow]) -> None:
    """Let it happen, each thing at its moment, whether or not the last one is over."""
    begun_s = monotonic()

    async def one(due: Due) -> None:
        await asyncio.sleep(max(0.0, begun_s + due.at_s - monotonic()))
        chosen = random.Random(due.seed)  # noqa: S311 -- as above
        what = await due.deed(stack, chosen)
        blows.append(Blow(what, monotonic()))

    await asyncio.gather(*(one(due) for due in weather(seed, lasts_s)))


def _names(stack: Stack) -> list[str]:
    return [part.name for part in state.read(stack.data_dir).parts]


async def _ready(stack: Stack, name: str) -> psutil.Process:
    """The process of a part; waits until it is ready."""
    while True:
        (part,) = [part for part in state.read(stack.data_dir).parts if part.name == name]
        if part.state == "ready" and part.pid is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                return psutil.Process(part.pid)
        await asyncio.sleep(LOOK_S)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _signal(family: list[psutil.Process], number: signal.Signals) -> None:
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
