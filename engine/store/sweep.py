"""Walks over a whole store: what may go, and what is not what its name says. Safe beside running workers."""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from engine.store import block, log, pin, tombstone
from engine.store.block import BlockCorrupt, BlockMissing, BlockName, Term
from engine.store.namespace import namespaces_of
from engine.store.places import (
    BLOCK,
    GOING,
    QUARANTINE,
    TEMPORARY,
    Place,
    Removed,
    Remover,
    places_of,
    put_back,
)
from engine.store.survey import Found, parents_of
from engine.store.tombstone import Reason, Tombstones

_QUARANTINE_KEPT_S: Final = 7 * 86_400
_LEFTOVER_KEPT_S: Final = 60


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep removed.

    Leftovers of killed writers, blocks past their promise, old quarantined files, tombstones and pins that
    are over, and blocks that the deployment's quota had no room for.
    """

    temporary: int = 0
    expired: int = 0
    quarantined: int = 0
    tombstones: int = 0
    pins: int = 0
    evicted: int = 0


@dataclass(slots=True)
class Sweep:
    """One walk over a store that removes what is left over and what is promised no longer at ``at_s``."""

    root: Path
    at_s: int
    remover: Remover
    tombstones: Callable[[Place], Tombstones]
    pause: Callable[[], None]
    removed: Counter[str] = field(default_factory=Counter)

    def run(self) -> Iterator[tuple[Place, Found]]:
        """Walk; yields what stays of each place. A parent stays while its child does."""
        for path in self._outside_places():
            with contextlib.suppress(OSError):
                self._leftover(path, path.stat())
        for place in places_of(self.root):
            yield place, self._place(place)

    def _outside_places(self) -> Iterator[Path]:
        for name in (tombstone.FOLDER, pin.FOLDER, log.FOLDER):
            for folder, _, names in os.walk(self.root / name):
                yield from (Path(folder, name) for name in names)
                self.pause()
        for digest in namespaces_of(self.root):
            yield from (self.root / digest).glob(f"*{TEMPORARY}")

    def _place(self, place: Place) -> Found:
        found: Found = {}
        over: dict[bytes, Term] = {}
        for file, status in place.files(self.pause):
            term = Term.of(status)
            if isinstance(file, Path):
                self._leftover(file, status)
                if file.suffix == GOING:  # it may come back, and whoever removes it will say so
                    with contextlib.suppress(ValueError):
                        found[bytes.fromhex(file.stem)] = status.st_size, term
                continue
            found[file] = status.st_size, term
            if term.ends_s <= self.at_s:
                over[file] = term
        if over and len(over) < len(found):
            _spare_parents(over, found, parents_of(place, found))
        for block_hash, term in over.items():
            done = self.remover.remove(place, block_hash, term, self.tombstones(place), Reason.OPERATOR)
            if done in (Removed.REMOVED, Removed.GONE):
                del found[block_hash]
            self.removed["expired"] += done is Removed.REMOVED
        return found

    def _leftover(self, path: Path, status: os.stat_result) -> None:
        old = status.st_ctime < self.at_s - _LEFTOVER_KEPT_S
        if path.suffix == TEMPORARY:
            self._unlink_if(old, path, "temporary")
        elif path.suffix == GOING and old:
            put_back(path.with_suffix(BLOCK), path)
        elif path.parent.name == QUARANTINE:
            self._unlink_if(status.st_mtime < self.at_s - _QUARANTINE_KEPT_S, path, "quarantined")
        elif path.suffix == tombstone.SUFFIX:
            self._unlink_if(status.st_mtime <= self.at_s, path, "tombstones")
        elif path.suffix == pin.SUFFIX:
            self._unlink_if(status.st_mtime <= self.at_s, path, "pins")

    def _unlink_if(self, over: bool, path: Path, counted_as: str) -> None:
        if over:
            with contextlib.suppress(OSError):
                path.unlink()
                self.removed[counted_as] += 1


def _spare_parents(over: dict[bytes, Term], found: Found, parents: Mapping[bytes, bytes]) -> None:
    """Take out of ``over`` what has a living descendant."""
    living = [block_hash for block_hash in found if block_hash not in over]
    while living:
        parent = parents.get(living.pop(), b"")
        if over.pop(parent, None):
            living.append(parent)


def findings(root: Path, pause: Callable[[], None]) -> Iterator[str]:
    """A line for each visible block that is not, bit for bit, what its name says."""
    for place in places_of(root):
        for folder, _, names in os.walk(place.folder):
            if Path(folder).name == QUARANTINE:
                continue
            for name in names:
                if name.endswith(BLOCK):
                    yield from _finding(place, Path(folder, name))
            pause()


def _finding(place: Place, path: Path) -> Iterator[str]:
    try:
        block_hash = bytes.fromhex(path.stem)
        if path != place.path(block_hash):
            yield f"{path}: in the wrong folder"
        block.verify(path, BlockName(bytes.fromhex(place.namespace), block_hash))
    except BlockMissing:
        return  # removed since the walk began
    except (BlockCorrupt, ValueError, OSError) as error:
        yield f"{path}: {error}"
