"""Pins: leases on blocks that a worker is about to load, as files that all workers of the directory see.

A loader pins, then looks again whether the blocks are there. Who removes a block first makes it invisible by
a rename, then reads the pins, and puts it back if it is pinned. Whichever comes first, a block that was seen
under a pin is not deleted. No lock server and no locks of the file system are needed. A pin whose worker was
killed lapses; clocks of the machines may differ by much less than `LEASE_S`.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = "pins"
SUFFIX: Final = ".pin"
LEASE_S: Final = 60


@dataclass(frozen=True, slots=True)
class Pin:
    """A lease that was taken. Releasing it twice, or after it lapsed, does nothing."""

    path: Path

    def release(self) -> None:
        """Let the blocks go."""
        with contextlib.suppress(OSError):
            self.path.unlink()


class Pins:
    """Pins of one store.

    Args:
        root: the store's directory.
        now_s: the clock, in Unix seconds.
    """

    def __init__(self, root: Path, now_s: Callable[[], int]) -> None:
        self._folder = root / FOLDER
        self._now_s = now_s
        self._read: dict[str, frozenset[str]] = {}

    def take(self, place: str, block_hashes: Sequence[bytes]) -> Pin | None:
        """Pin blocks of a place (``namespace/tenant``) for `LEASE_S`; None when the disk refuses."""
        unique = f"{os.getpid()}-{os.urandom(8).hex()}"
        path = self._folder / f"{unique}{SUFFIX}"
        temporary = self._folder / f"{unique}.tmp"
        lines = "\n".join(f"{place}/{block_hash.hex()}" for block_hash in block_hashes)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary.write_text(lines)
            lapses_s = self._now_s() + LEASE_S
            os.utime(temporary, (lapses_s, lapses_s))
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            return None
        return Pin(path)

    def hold(self, place: str, block_hash: bytes) -> bool:
        """Whether anyone holds the block now. An unreadable pin holds every block: nothing goes blindly."""
        wanted = f"{place}/{block_hash.hex()}"
        try:
            held = list(self._living())
        except OSError:
            return True
        return any(wanted in names for names in held)

    def _living(self) -> Iterator[frozenset[str]]:
        """What the pins that have not lapsed hold; each file is read once, since pins never change."""
        now_s, known, self._read = self._now_s(), self._read, {}
        try:
            entries = list(os.scandir(self._folder))
        except FileNotFoundError:
            return
        for entry in entries:
            try:
                if not entry.name.endswith(SUFFIX) or entry.stat().st_mtime <= now_s:
                    continue
                names = known.get(entry.name)
                if names is None:
                    names = frozenset(Path(entry.path).read_text().splitlines())
            except FileNotFoundError:
                continue  # released meanwhile
            self._read[entry.name] = names
            yield names
