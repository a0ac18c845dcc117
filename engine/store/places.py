"""Where a tenant's blocks of one namespace lie, and how one is removed without harm to its readers."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from engine.store.block import Term
from engine.store.namespace import DESCRIPTION, namespaces_of
from engine.store.pin import Pins
from engine.store.tombstone import Reason, Tombstones

BLOCK: Final = ".kv"
GOING: Final = ".going"
TEMPORARY: Final = ".tmp"
QUARANTINE: Final = "quarantine"


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
        for folder in _folders(self.folder):
            if folder.name == QUARANTINE:
                continue
            with contextlib.suppress(OSError), os.scandir(folder.path) as entries:
                for entry in entries:
                    stem, suffix = os.path.splitext(entry.name)  # noqa: PTH122 -- a million names
                    if suffix == BLOCK:
                        with contextlib.suppress(OSError, ValueError):
                            yield bytes.fromhex(stem), entry.stat()
            pause()


def places_of(root: Path, namespace: str | None = None) -> Iterator[Place]:
    """Every place of a store, or of one namespace of it."""
    for digest in namespaces_of(root) if namespace is None else (namespace,):
        for folder in _folders(root / digest):
            if folder.name != DESCRIPTION:
                yield Place(root, digest, folder.name)


def _folders(parent: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(parent) as entries:
            return sorted((entry for entry in entries if entry.is_dir()), key=lambda entry: entry.name)
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
    """

    pins: Pins
    now_s: Callable[[], int]

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
            return Removed.GONE
        except OSError:
            return Removed.REFUSED
        term = Term.of(status)
        outcome = Removed.REMOVED
        if term != seen:
            outcome = Removed.RENEWED
        elif self.pins.hold(place.name, block_hash):
            outcome = Removed.PINNED
        elif (
            term.promised
            and term.ends_s > self.now_s()
            and not owed_to.put(block_hash, term.ends_s, reason, status.st_size)
        ):
            outcome = Removed.REFUSED
        if outcome is not Removed.REMOVED:
            put_back(path, going)
            return outcome
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
