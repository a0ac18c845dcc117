"""Where a tenant's blocks of one namespace lie, and how one is removed without harm to its readers."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from engine.store.block import HASH_BYTES, Term
from engine.store.log import Change, Log
from engine.store.namespace import namespaces_of
from engine.store.pin import Pins
from engine.store.tombstone import Reason, Tombstones

BLOCK: Final = ".kv"
GOING: Final = ".going"
TEMPORARY: Final = ".tmp"
QUARANTINE: Final = "quarantine"
_DIGITS: Final = 2
_NAME: Final = 2 * HASH_BYTES + len(BLOCK)


@dataclass(frozen=True, slots=True)
class Place:
    """Blocks of one tenant in one namespace: ``<root>/<namespace>/<tenant>/<hh>/<hash>.kv``."""

    root: Path
    namespace: str
    tenant: str
    _base: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_base", str(self.folder))

    @property
    def name(self) -> str:
        """As pins write it."""
        return f"{self.namespace}/{self.tenant}"

    @property
    def folder(self) -> Path:
        """The tenant's folder."""
        return self.root / self.namespace / self.tenant

    def path(self, block_hash: bytes) -> Path:
        """File of a block."""
        return Path(self.file(block_hash))

    def file(self, block_hash: bytes) -> str:
        """File of a block, for look-ups: a path as text costs a tenth of a `Path`."""
        digits = block_hash.hex()
        return f"{self._base}/{digits[:2]}/{digits}{BLOCK}"

    def blocks(self, pause: Callable[[], None] = lambda: None) -> Iterator[tuple[bytes, os.stat_result]]:
        """Hash and status of every visible block; ``pause`` is called after each subfolder."""
        for file, status in self.files(pause):
            if isinstance(file, bytes):
                yield file, status

    def files(
        self, pause: Callable[[], None] = lambda: None
    ) -> "Iterator[tuple[bytes | Path, os.stat_result]]":
        """Hash and status of every visible block, path and status of every other file, in one walk."""
        for folder in ("", *_folders(self._base)):
            visible = len(folder) == _DIGITS
            with contextlib.suppress(OSError), os.scandir(f"{self._base}/{folder}") as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        name = entry.name
                        if visible and len(name) == _NAME and name.endswith(BLOCK):
                            with contextlib.suppress(ValueError):
                                yield bytes.fromhex(name[: -len(BLOCK)]), _status(entry)
                        elif entry.is_file(follow_symlinks=False):
                            yield Path(entry.path), entry.stat()
            pause()


def _status(entry: "os.DirEntry[str]") -> os.stat_result:
    """Status of a block, also when it has been hidden since the folder was read."""
    try:
        return entry.stat()
    except FileNotFoundError:
        return os.stat(entry.path[: -len(BLOCK)] + GOING)  # noqa: PTH116 -- a path as text


def places_of(root: Path, namespace: str | None = None) -> Iterator[Place]:
    """Every place of a store, or of one namespace of it."""
    for digest in namespaces_of(root) if namespace is None else (namespace,):
        for folder in _folders(root / digest):
            yield Place(root, digest, folder)


def _folders(parent: Path | str) -> list[str]:
    try:
        with os.scandir(parent) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        return []


class Removed(Enum):
    """How a removal ended. Only after ``REMOVED`` and ``GONE`` is the block not there."""

    REMOVED = "removed"
    GONE = "gone"
    PINNED = "pinned"
    RENEWED = "renewed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Remover:
    """Takes blocks out of a store that others read and write at the same time.

    Args:
        pins: what is being loaded.
        now_s: the clock, in Unix seconds.
        log: where removals are said.
    """

    pins: Pins
    now_s: Callable[[], int]
    log: Log

    def remove(
        self, place: Place, block_hash: bytes, seen: Term, owed_to: Tombstones, reason: Reason
    ) -> Removed:
        """Remove a block whose term was ``seen``; a promise that is broken by it leaves a tombstone first.

        The block is made invisible, then looked at again: pinned or renewed since, it is put back. One that
        is pinned already is not touched, so a loader misses its block for a moment at most once a remover.
        """
        if self.pins.hold(place.name, block_hash):
            return Removed.PINNED
        path = place.path(block_hash)
        going = path.with_suffix(GOING)
        try:
            if going.exists():
                return Removed.PINNED  # another remover is at it
            path.rename(going)
            status = going.stat()
        except FileNotFoundError:
            return Removed.PINNED if going.exists() else Removed.GONE
        except OSError:
            return Removed.REFUSED
        term, size = Term.of(status), status.st_size
        broken = term.promised and term.ends_s > self.now_s()
        outcome = Removed.REMOVED
        if term != seen:
            outcome = Removed.RENEWED
        elif self.pins.hold(place.name, block_hash):
            outcome = Removed.PINNED
        elif broken and not owed_to.put(block_hash, term.ends_s, reason, size):
            outcome = Removed.REFUSED
        if outcome is not Removed.REMOVED:
            put_back(path, going)
            return outcome
        freed = size if term.promised and not broken else 0  # what is owed stays guaranteed
        # Before the file is gone: whoever finds neither of the two names finds the line.
        self.log.left(Change(-size, -freed, place.name, block_hash, term))
        with contextlib.suppress(OSError):
            going.unlink()
        return outcome


def put_back(path: Path, going: Path) -> None:
    """Make a block visible again, unless another writer has published it meanwhile."""
    with contextlib.suppress(OSError):
        if path.exists():
            going.unlink()
        else:
            going.rename(path)
