"""What a storm does to a stack: kills a part without warning, spoils what the store holds."""

import contextlib
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from tests.e2e.stack import Stack


@dataclass(frozen=True, slots=True)
class Blow:
    """One fault that happened: what, when, and the file it befell."""

    what: str
    at_s: float
    path: Path | None = None


def kill(stack: Stack, prefix: str) -> Blow:
    """SIGKILL to the first ready part whose name begins so; waits until there is one."""
    while True:
        parts = [p for p in stack.parts().values() if p["name"].startswith(prefix) and p["state"] == "ready"]
        with contextlib.suppress(ProcessLookupError):  # killed a moment ago, and not missed yet
            for part in parts:
                os.kill(part["pid"], signal.SIGKILL)
                return Blow(f"killed {part['name']}", monotonic())


def spoil(stack: Stack, chosen: random.Random) -> Blow | None:
    """Flip, shorten, empty, exchange or remove a stored block; None while there is none."""
    blocks = [path for path in (stack.data_dir / "store").rglob("*.kv") if "quarantine" not in path.parts]
    if not blocks:
        return None
    path = chosen.choice(blocks)
    name, deed = chosen.choice(DEEDS)
    try:
        deed(path, chosen)
    except FileNotFoundError:  # evicted or quarantined meanwhile
        return None
    return Blow(f"{name} a block", monotonic(), path)


def _flip(path: Path, chosen: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
    path.write_bytes(content)


def _shorten(path: Path, chosen: random.Random) -> None:
    os.truncate(path, chosen.randrange(path.stat().st_size))


def _empty(path: Path, chosen: random.Random) -> None:
    os.truncate(path, 0)


def _exchange(path: Path, chosen: random.Random) -> None:
    """Put another block's bytes under this name."""
    other = chosen.choice(sorted(path.parent.parent.rglob("*.kv")))
    path.write_bytes(other.read_bytes())


def _remove(path: Path, chosen: random.Random) -> None:
    path.unlink()


DEEDS: Final[tuple[tuple[str, Callable[[Path, random.Random], None]], ...]] = (
    ("flipped a bit of", _flip),
    ("shortened", _shorten),
    ("emptied", _empty),
    ("exchanged", _exchange),
    ("removed", _remove),
)
