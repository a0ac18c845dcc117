"""What a directory holds and guarantees, as all its writers count it together, and the order it would go in.

A census is the last survey (`engine.store.survey`) and what writers have logged since (`engine.store.log`).
It knows every byte, but of the blocks only those that would go first, and those of the logs: each writer
keeps little in memory, however large the store is. A block is logged before it is stored and when it leaves,
so a sum is too small by no more than what is being removed at this moment, a block a thread.
"""

import contextlib
import heapq
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.proof.prefix import ROOT_HASH
from engine.store.block import Term
from engine.store.log import FOLDER, SURVEY, Change, changes_in, identity_of, logs_in
from engine.store.places import Place

Key = tuple[str, bytes]
Rank = tuple[int, int]


def rank_of(term: Term) -> Rank:
    """What goes first: unpromised blocks, then soonest end of promise."""
    return (term.ends_s if term.promised else 0, term.ends_s)


@dataclass(slots=True)
class Counted:
    """One block of the census; ``children`` are those of its blocks that are counted too."""

    parent: bytes
    file_bytes: int
    term: Term
    children: int = 0


class Census:
    """One writer's view of a directory. Keys are a place's name and a block's hash.

    Not for several threads at once.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.survey: int | None = None
        self._begin({}, iter(()))

    def _begin(self, counted: dict[str, object], listed: "Iterator[tuple[Key, Counted]]") -> None:
        used, guaranteed, read = (counted.get(name) for name in ("used_bytes", "guaranteed_bytes", "logs"))
        self.used_bytes = used if isinstance(used, int) else 0
        self.guaranteed_bytes: Counter[str] = Counter(guaranteed if isinstance(guaranteed, dict) else {})
        self._read: dict[str, int] = read if isinstance(read, dict) else {}
        self.blocks: dict[Key, Counted] = {}
        self._left: set[Key] = set()
        self._waiting: Counter[Key] = Counter()
        self._leaves: list[tuple[Rank, int, Key]] = []
        self._sequence = itertools.count()
        self._listed = listed
        self._next = next(listed, None)
        # Beyond the last one listed there are others that would go before what the logs name.
        self._listed_to: Rank = (0, 0)
        self._whole = counted.get("whole") is True

    def refresh(self) -> None:
        """Read a survey that is new, and what was logged since. ``survey`` is None when there is none."""
        survey = identity_of(self._root)
        if survey != self.survey:
            lines = _lines(self._root)
            header = next(lines, "")
            try:
                counted = json.loads(header)
            except ValueError:
                survey, counted, lines = None, {}, iter(())
            self.survey = survey
            self._begin(counted, map(_listed, lines))
        for name in logs_in(self._root):
            changes, self._read[name] = changes_in(self._root, name, self._read.get(name, 0))
            for change in changes:
                self._take(change)

    def _take(self, change: Change) -> None:
        key = (change.place, change.block_hash)
        self.used_bytes += change.used_bytes
        self.guaranteed_bytes[change.place.split("/")[1]] += change.guaranteed_bytes
        if change.used_bytes > 0 and key in self._left:
            self._left.remove(key)  # it came and went: the other writer's log was read first
        elif change.used_bytes > 0:
            self.add(key, Counted(change.parent, change.used_bytes, change.term))
        elif change.used_bytes < 0:
            if key not in self.blocks:
                self._left.add(key)
            self.forget(key)
        else:
            self.change(key, change.term)

    def add(self, key: Key, counted: Counted) -> None:
        """Know a block."""
        self.forget(key)
        counted.children = self._waiting.pop(key, 0)
        self.blocks[key] = counted
        above = (key[0], counted.parent)
        if above in self.blocks:
            self.blocks[above].children += 1
        elif counted.parent != ROOT_HASH:
            self._waiting[above] += 1
        self.offer(key)

    def forget(self, key: Key) -> None:
        """Know a block no more; a parent whose last child it was is a leaf now."""
        counted = self.blocks.pop(key, None)
        if counted is None:
            return
        if counted.children:
            self._waiting[key] += counted.children
        above = (key[0], counted.parent)
        if above in self.blocks:
            self.blocks[above].children -= 1
            self.offer(above)
        elif self._waiting.get(above):
            self._waiting[above] -= 1

    def change(self, key: Key, term: Term) -> None:
        """A block's term is another one now."""
        counted = self.blocks.get(key)
        if counted is not None and counted.term != term:
            counted.term = term
            self.offer(key)

    def offer(self, key: Key) -> None:
        """Let `leaves` offer a block (again), if it is a leaf."""
        counted = self.blocks[key]
        if counted.children == 0:
            heapq.heappush(self._leaves, (rank_of(counted.term), next(self._sequence), key))

    def leaves(self) -> Iterator[Key]:
        """Leaves, the first to go first, as far as they are known.

        Offers each once; `offer` takes back what was not removed.
        """
        while True:
            while self._next is not None and (
                not self._leaves or rank_of(self._next[1].term) <= self._leaves[0][0]
            ):
                key, counted = self._next
                if key not in self.blocks and key not in self._left:
                    self.add(key, counted)
                self._listed_to = max(self._listed_to, rank_of(counted.term))
                self._next = next(self._listed, None)
            if not self._leaves or (not self._whole and self._leaves[0][0] > self._listed_to):
                return
            rank, _, key = heapq.heappop(self._leaves)
            known = self.blocks.get(key)
            if known is not None and known.children == 0 and rank_of(known.term) == rank:
                yield key

    def place_of(self, key: Key) -> Place:
        """Where a block lies."""
        return Place(self._root, *key[0].split("/"))


def line_of(place: str, block_hash: bytes, counted: Counted) -> str:
    """A block as a survey lists it."""
    return str(Change(counted.file_bytes, 0, place, block_hash, counted.term, counted.parent))


def _listed(line: str) -> tuple[Key, Counted]:
    change = Change.of(line.rstrip("\n"))
    return (change.place, change.block_hash), Counted(change.parent, change.used_bytes, change.term)


def _lines(root: Path) -> Iterator[str]:
    """Lines of a survey, as they are asked for: its file stays readable when a newer one takes its place."""
    with contextlib.suppress(OSError), (root / FOLDER / SURVEY).open() as file:
        yield from file
