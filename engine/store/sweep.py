"""Walks over a whole store: what may go, and what is not what its name says. Safe beside running workers."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from engine.store import block, pin, tombstone
from engine.store.block import BlockCorrupt, BlockError, BlockMissing, BlockName, Term
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

    def with_evicted(self, blocks: int) -> "SweepReport":
        """The same sweep, after its evictions."""
        return replace(self, evicted=blocks)


def sweep(
    root: Path,
    at_s: int,
    remover: Remover,
    tombstones: Callable[[Place], Tombstones],
    pause: Callable[[], None],
) -> SweepReport:
    """Remove leftovers and what is promised no longer at ``at_s``; a parent stays while its child does."""
    temporary, quarantined, over_tombstones, over_pins = _sweep_leftovers(root, at_s, pause)
    expired = 0
    for place in places_of(root):
        for block_hash, term in _over(place, at_s, pause):
            done = remover.remove(place, block_hash, term, tombstones(place), Reason.OPERATOR)
            expired += done is Removed.REMOVED
    return SweepReport(temporary, expired, quarantined, over_tombstones, over_pins)


def _sweep_leftovers(root: Path, at_s: int, pause: Callable[[], None]) -> tuple[int, int, int, int]:
    temporary = quarantined = tombstones = pins = 0
    for folder, _, names in os.walk(root):
        quarantined_here = folder.endswith(QUARANTINE)
        for name in names:
            if name.endswith(BLOCK) and not quarantined_here:
                continue
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                status = path.stat()
                if path.suffix == TEMPORARY:
                    temporary += _unlink_if(path, status.st_ctime < at_s - _LEFTOVER_KEPT_S)
                elif path.suffix == GOING and status.st_ctime < at_s - _LEFTOVER_KEPT_S:
                    put_back(path.with_suffix(BLOCK), path)
                elif quarantined_here:
                    quarantined += _unlink_if(path, status.st_mtime < at_s - _QUARANTINE_KEPT_S)
                elif path.suffix == tombstone.SUFFIX:
                    tombstones += _unlink_if(path, status.st_mtime <= at_s)
                elif path.suffix == pin.SUFFIX:
                    pins += _unlink_if(path, status.st_mtime <= at_s)
        pause()
    return temporary, quarantined, tombstones, pins


def _unlink_if(path: Path, over: bool) -> int:
    if over:
        path.unlink()
    return int(over)


def _over(place: Place, at_s: int, pause: Callable[[], None]) -> list[tuple[bytes, Term]]:
    """Blocks of a place that are promised no longer and have no living descendant."""
    living: list[bytes] = []
    over: dict[bytes, Term] = {}
    for block_hash, status in place.blocks(pause):
        term = Term.of(status)
        if term.ends_s <= at_s:
            over[block_hash] = term
        else:
            living.append(block_hash)
    while over and living:
        parent = _parent(place, living.pop())
        if parent in over:
            del over[parent]
            living.append(parent)
    return list(over.items())


def _parent(place: Place, block_hash: bytes) -> bytes | None:
    try:
        return block.read_header(place.path(block_hash)).parent
    except BlockError:
        return None


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
