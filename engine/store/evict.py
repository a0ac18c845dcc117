"""Quotas, and who goes first: soonest end of promise among leaves, so that a parent outlives its children.

What the directory holds is counted when it is walked, and kept up with this process's own writes after that.
The count is a cache: other workers' writes show at the next walk, and every victim is looked at again, on
disk, before it goes (`engine.store.places.Remover`). So a quota is exact for one writer and true again for
several after each walk; the safety of what is removed never depends on the count.

What keeps the guarantee from being farmed: live promises and tombstones of a tenant together stay within its
own quota, what goes beyond is stored unpromised; and what is stored unpromised, as an owed block is, never
evicts a promise.
"""

import heapq
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.proof.prefix import ROOT_HASH
from engine.store import block
from engine.store.block import BlockError, Term
from engine.store.namespace import Namespace
from engine.store.places import Place, Removed, Remover, places_of
from engine.store.tombstone import Reason, Tombstones, tombstones_in


@dataclass(frozen=True, slots=True)
class Quotas:
    """Bytes of block files: of the whole directory, and of what is promised or owed to any one tenant.

    None is unlimited.
    """

    deployment_bytes: int | None = None
    tenant_bytes: int | None = None

    @property
    def unlimited(self) -> bool:
        """Whether nothing has to be counted."""
        return self.deployment_bytes is None and self.tenant_bytes is None


Key = tuple[Place, bytes]


@dataclass(slots=True)
class Counted:
    """One block of the census; ``children`` are those of its blocks that are counted too."""

    parent: bytes
    file_bytes: int
    term: Term
    children: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """What goes first: unpromised blocks, then soonest end of promise."""
        return (self.term.ends_s if self.term.promised else 0, self.term.ends_s)


class Census:
    """Blocks as they were found, and the order in which they would go."""

    def __init__(self) -> None:
        self.blocks: dict[Key, Counted] = {}
        self.used_bytes = 0
        self.guaranteed_bytes: Counter[str] = Counter()
        self._waiting: Counter[Key] = Counter()
        self._leaves: list[tuple[tuple[int, int], int, Key]] = []
        self._sequence = itertools.count()

    @classmethod
    def walk(cls, root: Path, at_s: int, pause: Callable[[], None] = lambda: None) -> "Census":
        """Count what a directory holds and owes."""
        census = cls()
        for place in places_of(root):
            for block_hash, status in place.blocks(pause):
                try:
                    parent = block.read_header(place.path(block_hash)).parent
                except BlockError:
                    parent = ROOT_HASH
                census.add((place, block_hash), parent, status.st_size, Term.of(status))
        for _, tombstone in tombstones_in(root):
            if tombstone.ends_s > at_s:
                census.guaranteed_bytes[tombstone.tenant] += tombstone.block_bytes
        return census

    def add(self, key: Key, parent: bytes, file_bytes: int, term: Term) -> None:
        """Count a block."""
        self.forget(key)
        place, _ = key
        counted = Counted(parent, file_bytes, term, self._waiting.pop(key, 0))
        self.blocks[key] = counted
        self.used_bytes += file_bytes
        if term.promised:
            self.guaranteed_bytes[place.tenant] += file_bytes
        above = (place, parent)
        if above in self.blocks:
            self.blocks[above].children += 1
        elif parent != ROOT_HASH:
            self._waiting[above] += 1
        self._offer(key)

    def forget(self, key: Key) -> None:
        """Count a block no more; a parent whose last child it was is a leaf now."""
        counted = self.blocks.pop(key, None)
        if counted is None:
            return
        place, _ = key
        self.used_bytes -= counted.file_bytes
        if counted.term.promised:
            self.guaranteed_bytes[place.tenant] -= counted.file_bytes
        if counted.children:
            self._waiting[key] += counted.children
        above = (place, counted.parent)
        if above in self.blocks:
            self.blocks[above].children -= 1
            self._offer(above)
        elif self._waiting.get(above):
            self._waiting[above] -= 1

    def change(self, key: Key, term: Term) -> None:
        """A block's term is another one now."""
        counted = self.blocks.get(key)
        if counted is not None and counted.term != term:
            place, _ = key
            self.guaranteed_bytes[place.tenant] += counted.file_bytes * (
                term.promised - counted.term.promised
            )
            counted.term = term
            self._offer(key)

    def leaves(self) -> Iterator[Key]:
        """Leaves, the first to go first. Offers each once; `offer_again` takes back what was not removed."""
        while self._leaves:
            rank, _, key = heapq.heappop(self._leaves)
            counted = self.blocks.get(key)
            if counted is not None and counted.children == 0 and counted.rank == rank:
                yield key

    def offer_again(self, key: Key) -> None:
        """Let `leaves` offer a block once more."""
        self._offer(key)

    def _offer(self, key: Key) -> None:
        counted = self.blocks[key]
        if counted.children == 0:
            heapq.heappush(self._leaves, (counted.rank, next(self._sequence), key))


@dataclass(frozen=True, slots=True)
class Wish:
    """A block that someone wants to store: what it is, how large, and the promise asked for it."""

    place: Place
    block_hash: bytes
    parent: bytes
    file_bytes: int
    term: Term


class Evictor:
    """Decides what is stored, promised and evicted in one directory.

    Args:
        root: the store's directory.
        quotas: limits.
        remover: removes a victim.
        tombstones: a place's tombstones.
    """

    def __init__(
        self, root: Path, quotas: Quotas, remover: Remover, tombstones: Callable[[Place], Tombstones]
    ) -> None:
        self._root = root
        self.quotas = quotas
        self.evicted_blocks = 0
        self._remover = remover
        self._tombstones = tombstones
        self._census: Census | None = None
        self._since: dict[Key, Counted] = {}  # admitted since the walk under way has begun
        self._lock = threading.Lock()

    def admit(self, wish: Wish) -> Term | None:
        """Make room for a block and count it: the term it gets, or None when there is no room for it.

        A promise is given within the tenant's own quota. A promised block takes the place of what is promised
        for less long than itself; an unpromised one of unpromised blocks alone.
        """
        if self.quotas.unlimited:
            return wish.term
        with self._lock:
            census = self._counted()
            key = (wish.place, wish.block_hash)
            term = Term(wish.term.ends_s, wish.term.promised and self._may_promise(wish))
            # Counted first, so that its own ancestors are no leaves while room is made.
            census.add(key, wish.parent, wish.file_bytes, term)
            if self._make_room(census, key, census.blocks[key].rank):
                self._since[key] = census.blocks[key]
                return term
            census.forget(key)
            return None

    def renewed(self, place: Place, block_hash: bytes, term: Term) -> None:
        """A block's term was renewed on disk."""
        if self._census is not None:
            with self._lock:
                self._census.change((place, block_hash), term)

    def may_promise(self, place: Place, file_bytes: int) -> bool:
        """Whether a stored block of the tenant may be promised."""
        if self.quotas.tenant_bytes is None:
            return True
        with self._lock:
            held = self._counted().guaranteed_bytes[place.tenant]
            return held + file_bytes <= self.quotas.tenant_bytes

    def withdraw(self, place: Place, block_hash: bytes) -> None:
        """A block that was admitted was not written after all, or has left by another way."""
        if self._census is not None:
            with self._lock:
                self._census.forget((place, block_hash))
                self._since.pop((place, block_hash), None)

    def enforce(self, pause: Callable[[], None] = lambda: None) -> int:
        """Walk the directory, then evict until the deployment's quota is kept; how many blocks went."""
        if self.quotas.unlimited:
            return 0
        with self._lock:
            self._since = {}
        census = Census.walk(self._root, self._remover.now_s(), pause)
        with self._lock:
            for key, counted in self._since.items():
                if key not in census.blocks:  # written where the walk had already been
                    census.add(key, counted.parent, counted.file_bytes, counted.term)
            self._census, self._since = census, {}
            before = len(census.blocks)
            self._make_room(census, None, None)
            return before - len(census.blocks)

    def _counted(self) -> Census:
        if self._census is None:
            self._census = Census.walk(self._root, self._remover.now_s())
        return self._census

    def _may_promise(self, wish: Wish) -> bool:
        quota = self.quotas.tenant_bytes
        if quota is None:
            return True
        census = self._counted()
        known = census.blocks.get((wish.place, wish.block_hash))
        counted = known.file_bytes if known is not None and known.term.promised else 0
        return census.guaranteed_bytes[wish.place.tenant] - counted + wish.file_bytes <= quota

    def _make_room(self, census: Census, newcomer: Key | None, rank: tuple[int, int] | None) -> bool:
        """Evict until the quota is kept; ``rank`` is the newcomer's, which takes no better one's place."""
        quota = self.quotas.deployment_bytes
        if quota is None or census.used_bytes <= quota:
            return True
        if newcomer is not None and census.blocks[newcomer].file_bytes > quota:
            return False
        spared: list[Key] = []
        now_s = self._remover.now_s()
        for key in census.leaves():
            victim = census.blocks[key]
            over = victim.term.ends_s <= now_s
            if key == newcomer:
                spared.append(key)
                continue
            if rank is not None and not over and victim.rank >= rank:
                spared.append(key)
                break
            if not self._evict(census, key):
                spared.append(key)
            if census.used_bytes <= quota:
                break
        for key in spared:
            if key in census.blocks:
                census.offer_again(key)
        return census.used_bytes <= quota

    def _evict(self, census: Census, key: Key) -> bool:
        place, block_hash = key
        victim = census.blocks[key]
        owed_to = self._tombstones(place)
        outcome = self._remover.remove(place, block_hash, victim.term, owed_to, Reason.QUOTA)
        if outcome is Removed.RENEWED:
            try:
                census.change(key, Term.of(place.path(block_hash).stat()))
            except OSError:
                outcome = Removed.GONE
        if outcome not in (Removed.REMOVED, Removed.GONE):
            return outcome is Removed.RENEWED
        broken = (
            outcome is Removed.REMOVED and victim.term.promised and victim.term.ends_s > self._remover.now_s()
        )
        census.forget(key)
        self.evicted_blocks += outcome is Removed.REMOVED
        if broken:
            census.guaranteed_bytes[place.tenant] += victim.file_bytes
        return True


def tombstones_of(root: Path, now_s: Callable[[], int]) -> Callable[[Place], Tombstones]:
    """Where a place's broken promises are kept: under what its namespace says it promises."""
    promises: dict[str, str] = {}

    def at(place: Place) -> Tombstones:
        digest = promises.get(place.namespace) or Namespace.read(root, place.namespace).promises
        if digest != place.namespace:  # described: a description never changes
            promises[place.namespace] = digest
        return Tombstones(root, digest, place.tenant, now_s)

    return at
