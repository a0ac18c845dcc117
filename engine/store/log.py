"""What writers tell each other: each logs the blocks that it stores, removes or promises, a line a block.

Logs lie in ``<root>/census``, one a writer and survey, beside the survey that they continue
(`engine.store.survey`). A directory that nobody counts has no such folder, and nothing is logged. Logs are a
cache: what a crash or a full disk leaves out is counted again by the next survey.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from engine.proof.prefix import ROOT_HASH
from engine.store.block import Term

FOLDER: Final = "census"
SURVEY: Final = "survey"
SUFFIX: Final = ".log"


@dataclass(frozen=True, slots=True)
class Change:
    """One block, and by how many bytes it changes what is used and what its tenant is guaranteed.

    ``place`` is ``namespace/tenant``. More used is a block that is about to be stored, less one that leaves,
    none one whose ``term`` is another now.
    """

    used_bytes: int
    guaranteed_bytes: int
    place: str
    block_hash: bytes
    term: Term
    parent: bytes = ROOT_HASH

    def __str__(self) -> str:
        names = f"{self.place} {self.block_hash.hex()} {self.parent.hex()}"
        term = f"{self.term.ends_s} {int(self.term.promised)}"
        return f"{self.used_bytes} {self.guaranteed_bytes} {names} {term}\n"

    @classmethod
    def of(cls, line: str) -> Self:
        """Read a line; raises ValueError."""
        used, guaranteed, place, block_hash, parent, ends_s, promised = line.split(" ")
        if place.count("/") != 1:
            raise ValueError(place)
        term = Term(int(ends_s), promised == "1")
        return cls(int(used), int(guaranteed), place, bytes.fromhex(block_hash), term, bytes.fromhex(parent))


def identity_of(root: Path) -> int | None:
    """What tells one survey from the next: each gets a modification time of its own. None: there is none."""
    try:
        return os.stat(root / FOLDER / SURVEY).st_mtime_ns  # noqa: PTH116 -- asked before every block
    except OSError:
        return None


class Log:
    """This writer's log; a new survey begins a new one. Methods may run in any thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._file = ""
        self._survey: int | None = None
        self._lock = threading.Lock()

    def add(self, change: Change) -> None:
        """Write one line, in one call, so that it is whole for whoever reads; raises OSError."""
        with self._lock:
            survey = identity_of(self._root)
            if not self._file or survey != self._survey:
                name = f"{os.getpid()}-{os.urandom(6).hex()}{SUFFIX}"
                self._file, self._survey = str(self._root / FOLDER / name), survey
            try:
                file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            except FileNotFoundError:
                return  # nobody counts here
            try:
                os.write(file, str(change).encode())
            finally:
                os.close(file)

    def left(self, change: Change) -> None:
        """Say that a block has left; a disk that refuses leaves it counted until the next survey."""
        with contextlib.suppress(OSError):
            self.add(change)


def logs_in(root: Path) -> list[str]:
    """Names of all writers' logs."""
    with contextlib.suppress(OSError), os.scandir(root / FOLDER) as entries:
        return [entry.name for entry in entries if entry.name.endswith(SUFFIX)]
    return []


def changes_in(root: Path, name: str, start: int) -> tuple[list[Change], int]:
    """Whole lines of a log from byte ``start`` on, and where they end; what is no change is left out."""
    with contextlib.suppress(OSError):
        file = os.open(root / FOLDER / name, os.O_RDONLY)
        try:
            text = os.pread(file, max(0, os.fstat(file).st_size - start), start)
        finally:
            os.close(file)
        text = text[: text.rfind(b"\n") + 1]
        return list(_readable(text)), start + len(text)
    return [], start


def _readable(text: bytes) -> Iterator[Change]:
    for line in text.decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            yield Change.of(line)
