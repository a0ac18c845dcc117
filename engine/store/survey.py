"""Surveys: what a walk found, written down for all writers of a directory in ``<root>/census/survey``.

The first line says how much is used and what is guaranteed to each tenant, and up to where the logs are part
of it. The other lines list the blocks that would go first, in that order. A survey is a cache: it is made
again now and then, and what it says of a block is looked at again, on disk, before the block goes.
"""

import contextlib
import heapq
import itertools
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from engine.store import block
from engine.store.block import HASH_BYTES, BlockError, Term
from engine.store.census import Counted, Rank, line_of, rank_of
from engine.store.log import FOLDER, SURVEY, Change, changes_in, logs_in
from engine.store.places import GOING, Place
from engine.store.tombstone import tombstones_in

# Size of file and term of every block of a place.
Found = dict[bytes, tuple[int, Term]]
PARENTS: Final = "parents.index"
# Writers may fill as much of the quota before the next survey, and each still finds who goes first.
_LISTED_SHARE: Final = 0.2
_LISTED_BLOCKS_LEAST: Final = 4096
_LOG_KEPT_S: Final = 60


def make(root: Path, at_s: int, quota_bytes: int | None, found: dict[Place, Found]) -> None:
    """Write a survey of a directory at ``at_s``, in which a walk has ``found`` blocks.

    Raises:
        OSError: the disk does not take it.
    """
    (root / FOLDER).mkdir(parents=True, exist_ok=True, mode=0o700)
    read = _look_again(root, found)
    used, guaranteed = 0, Counter[str]()
    for place, blocks in found.items():
        used += sum(size for size, _ in blocks.values())
        guaranteed[place.tenant] += sum(size for size, term in blocks.values() if term.promised)
    for _, tombstone in tombstones_in(root):
        if tombstone.ends_s > at_s:
            guaranteed[tombstone.tenant] += tombstone.block_bytes
    few = sum(map(len, found.values())) <= _LISTED_BLOCKS_LEAST
    listed = 0 if quota_bytes is None else used if few else used - int(quota_bytes * (1 - _LISTED_SHARE))
    header = {
        "used_bytes": used,
        "guaranteed_bytes": guaranteed,
        "logs": read,
        "quota_bytes": quota_bytes,
        "whole": listed >= used,
    }
    file = root / FOLDER / SURVEY
    temporary = file.with_name(f"{SURVEY}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        with temporary.open("w") as lines:
            lines.write(json.dumps(header) + "\n")
            lines.writelines(_first_to_go(found, listed))
        written_s = temporary.stat().st_mtime
        # What tells it from others: inodes are used again within a tick of the disk's clock.
        unique_ns = int.from_bytes(os.urandom(7))
        os.utime(temporary, ns=(unique_ns, unique_ns))
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    _drop_logs(root, read, written_s)


def quota_of(root: Path) -> int | None:
    """The deployment's quota by which workers keep a directory, in bytes; None when they know of none."""
    with contextlib.suppress(OSError, ValueError), (root / FOLDER / SURVEY).open() as lines:
        match json.loads(lines.readline()):
            case {"quota_bytes": int(quota_bytes)}:
                return quota_bytes
    return None


def _look_again(root: Path, found: dict[Place, Found]) -> dict[str, int]:
    """Bring what a walk found up to the logs of all writers; returns how far each was read.

    What they name is looked at on disk once more: the walk may have passed before it changed. A block that
    was logged, and is not there, is being written.
    """
    read, named = dict[str, int](), defaultdict[tuple[str, bytes], list[Change]](list)
    for name in logs_in(root):
        changes, read[name] = changes_in(root, name, 0)
        for change in changes:
            named[change.place, change.block_hash].append(change)
    for (name, block_hash), changes in named.items():
        place = Place(root, *name.split("/"))
        blocks = found.setdefault(place, {})
        blocks.pop(block_hash, None)
        path = place.path(block_hash)
        used_bytes = sum(change.used_bytes for change in changes)
        if used_bytes > 0:
            blocks[block_hash] = used_bytes, changes[-1].term
        for shown in (path.with_suffix(GOING), path):  # what is being removed may come back
            with contextlib.suppress(OSError):
                status = shown.stat()
                blocks[block_hash] = status.st_size, Term.of(status)
    return read


def _drop_logs(root: Path, read: Mapping[str, int], now_s: float) -> None:
    """Remove logs that are part of the survey, and that nobody writes to any more."""
    for name, end in read.items():
        with contextlib.suppress(OSError):
            status = (root / FOLDER / name).stat()
            if status.st_size == end and status.st_mtime < now_s - _LOG_KEPT_S:
                (root / FOLDER / name).unlink()


def _first_to_go(found: Mapping[Place, Found], wanted_bytes: int) -> Iterator[str]:
    """Blocks of so many bytes, in the order in which they would go: leaves first, soonest end first."""
    if wanted_bytes <= 0:
        return
    sequence, waiting = itertools.count(), list[tuple[Rank, int, Place, bytes]]()
    parents, children = dict[Place, Mapping[bytes, bytes]](), dict[Place, Counter[bytes]]()
    for place, blocks in found.items():
        parents[place] = parents_of(place, blocks)
        children[place] = Counter(parents[place].values())
        for block_hash, (_, term) in blocks.items():
            if block_hash not in children[place]:
                waiting.append((rank_of(term), next(sequence), place, block_hash))
    heapq.heapify(waiting)
    while waiting and wanted_bytes > 0:
        _, _, place, block_hash = heapq.heappop(waiting)
        size, term = found[place][block_hash]
        parent = parents[place][block_hash]
        yield line_of(place.name, block_hash, Counted(parent, size, term))
        wanted_bytes -= size
        children[place][parent] -= 1
        if not children[place][parent] and parent in found[place]:
            heapq.heappush(waiting, (rank_of(found[place][parent][1]), next(sequence), place, parent))


def parents_of(place: Place, blocks: Mapping[bytes, object]) -> dict[bytes, bytes]:
    """Parents of a place's blocks. Each header is read once: an index beside the blocks keeps what it said.

    A hash covers its parent, so that an index is never out of date; without it headers are read again.
    """
    file, known = place.folder / PARENTS, dict[bytes, bytes]()
    with contextlib.suppress(OSError):
        text = file.read_bytes()
        for at in range(0, len(text) - 2 * HASH_BYTES + 1, 2 * HASH_BYTES):
            known[text[at : at + HASH_BYTES]] = text[at + HASH_BYTES : at + 2 * HASH_BYTES]
    parents = {each: known.get(each) or _parent(place, each) for each in blocks}
    kept = {each: parent for each, parent in parents.items() if parent}
    if kept.keys() != known.keys():
        temporary = file.with_name(f"{PARENTS}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
        with contextlib.suppress(OSError):
            temporary.write_bytes(b"".join(itertools.chain.from_iterable(kept.items())))
            temporary.replace(file)
    return parents


def _parent(place: Place, block_hash: bytes) -> bytes:
    """Empty when the header cannot be read."""
    try:
        return block.read_header(place.path(block_hash)).parent
    except BlockError:
        return b""
