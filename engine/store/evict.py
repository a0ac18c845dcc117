"""Quotas, and who goes first: soonest end of promise among leaves, so that a parent outlives its children.

What the directory holds is counted by all its writers together (`engine.store.census`): a block is logged,
then what others have logged is read, then room is made for it. Two that store at once each see the other, so
a quota is kept at every moment, but for what is being removed just then, a block a thread. The count is a
cache: every victim is looked at again, on disk, before it goes (`engine.store.places.Remover`); the safety of
what is removed never depends on the count.

What keeps the guarantee from being farmed: live promises and tombstones of a tenant together stay within its
own quota, what goes beyond is stored unpromised; and what is stored unpromised, as an owed block is, never
evicts a promise.
"""

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.store import survey
from engine.store.block import Term
from engine.store.census import Census, Key, rank_of
from engine.store.log import Change, Log
from engine.store.namespace import Namespace
from engine.store.places import Place, Removed, Remover, places_of
from engine.store.survey import Found
from engine.store.tombstone import Reason, Tombstones


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


@dataclass(frozen=True, slots=True)
class Wish:
    """A block that someone wants to store: what it is, how large, and the promise asked for it."""

    place: Place
    block_hash: bytes
    parent: bytes
    file_bytes: int
    term: Term

    def change(self, sign: int, term: Term) -> Change:
        """What storing it (1) or not storing it after all (-1) changes."""
        used = sign * self.file_bytes
        return Change(used, used * term.promised, self.place.name, self.block_hash, term, self.parent)


class Evictor:
    """Decides what is stored, promised and evicted in one directory. Methods may run in any thread.

    Args:
        root: the store's directory.
        quotas: limits.
        remover: removes a victim.
        tombstones: a place's tombstones.
        log: where this writer says what it does.
    """

    def __init__(
        self,
        root: Path,
        quotas: Quotas,
        remover: Remover,
        tombstones: Callable[[Place], Tombstones],
        log: Log,
    ) -> None:
        self._root = root
        self.quotas = quotas
        self.evicted_blocks = 0
        self._remover = remover
        self._tombstones = tombstones
        self._log = log
        self._census = Census(root)
        self._lock = threading.Lock()
        # Set when there is no survey, or its list of who goes first is used up: a new one is wanted.
        self.starved = threading.Event()

    def admit(self, wish: Wish) -> Term | None:
        """Make room for a block and count it: the term it gets, or None when there is no room for it.

        A promise is given within the tenant's own quota. A promised block takes the place of what is promised
        for less long than itself; an unpromised one of unpromised blocks alone.

        Raises:
            OSError: it cannot be counted.
        """
        if self.quotas.unlimited:
            self._log.add(wish.change(1, wish.term))
            return wish.term
        with self._lock:
            self._counted()
            # Logged first: its own ancestors are no leaves while room is made, and other writers see it.
            self._log.add(wish.change(1, wish.term))
            term = wish.term
            if term.promised and not self._fits(self._counted(), wish.place.tenant, 0):
                term = Term(term.ends_s, promised=False)
                self._log.add(Change(0, -wish.file_bytes, wish.place.name, wish.block_hash, term))
            if self._make_room((wish.place.name, wish.block_hash), wish.file_bytes, term):
                return term
            self._log.add(wish.change(-1, term))
            return None

    def renewed(self, place: Place, block_hash: bytes, term: Term, promised_bytes: int = 0) -> None:
        """A block's term was renewed on disk; with ``promised_bytes`` it had no promise before."""
        if promised_bytes:
            self._log.left(Change(0, promised_bytes, place.name, block_hash, term))
        with self._lock:
            self._census.change((place.name, block_hash), term)

    def may_promise(self, place: Place, file_bytes: int) -> bool:
        """Whether a stored block of the tenant may be promised; raises OSError."""
        if self.quotas.tenant_bytes is None:
            return True
        with self._lock:
            return self._fits(self._counted(), place.tenant, file_bytes)

    def withdraw(self, wish: Wish, term: Term) -> None:
        """A block that was admitted was not written after all, or has left by another way."""
        self._log.left(wish.change(-1, term))

    def enforce(self, found: dict[Place, Found]) -> int:
        """Survey the directory, in which a walk has ``found`` blocks, and keep its quota; how many went."""
        if self.quotas.unlimited:
            return 0
        survey.make(self._root, self._remover.now_s(), self.quotas.deployment_bytes, found)
        with self._lock:
            before = self.evicted_blocks
            self._make_room(None, 0, None)
            return self.evicted_blocks - before

    def _counted(self) -> Census:
        """The census. What nobody has counted yet is not walked here, where a step waits; raises OSError."""
        self._census.refresh()
        if self._census.survey is None:
            if any(True for _ in places_of(self._root)):
                self.starved.set()
                raise OSError(errno.EAGAIN, "nobody has counted the store yet", str(self._root))
            survey.make(self._root, self._remover.now_s(), self.quotas.deployment_bytes, {})
            self._census.refresh()
        return self._census

    def _fits(self, census: Census, tenant: str, more_bytes: int) -> bool:
        quota = self.quotas.tenant_bytes
        return quota is None or census.guaranteed_bytes[tenant] + more_bytes <= quota

    def _make_room(self, newcomer: Key | None, file_bytes: int, term: Term | None) -> bool:
        """Evict until the quota is kept; a newcomer takes the place of nothing better than its ``term``."""
        quota, census = self.quotas.deployment_bytes, self._counted()
        if quota is None or census.used_bytes <= quota:
            return True
        if file_bytes > quota:
            return False
        spared: list[Key] = []
        now_s = self._remover.now_s()
        for key in census.leaves():
            victim = census.blocks[key].term
            if key == newcomer:
                spared.append(key)
                continue
            if term is not None and victim.ends_s > now_s and rank_of(victim) >= rank_of(term):
                spared.append(key)
                break
            if not self._evict(key):
                spared.append(key)
            if census.used_bytes <= quota:
                break
        else:
            self.starved.set()
        for key in spared:
            if key in census.blocks:
                census.offer(key)
        return census.used_bytes <= quota

    def _evict(self, key: Key) -> bool:
        """Evict one block; False when it stays as it is."""
        census, place = self._census, self._census.place_of(key)
        victim = census.blocks[key]
        owed_to = self._tombstones(place)
        outcome = self._remover.remove(place, key[1], victim.term, owed_to, Reason.QUOTA)
        if outcome is Removed.RENEWED:
            try:
                census.change(key, Term.of(place.path(key[1]).stat()))
            except OSError:
                outcome = Removed.GONE
        census.refresh()
        if outcome is Removed.GONE:
            census.forget(key)  # being written, or gone without a word: the next survey knows
        self.evicted_blocks += outcome is Removed.REMOVED
        return outcome in (Removed.REMOVED, Removed.GONE, Removed.RENEWED)


def tombstones_of(root: Path, now_s: Callable[[], int]) -> Callable[[Place], Tombstones]:
    """Where a place's broken promises are kept: under what its namespace says it promises."""
    promises: dict[str, str] = {}

    def at(place: Place) -> Tombstones:
        digest = promises.get(place.namespace) or Namespace.read(root, place.namespace).promises
        if digest != place.namespace:  # described: a description never changes
            promises[place.namespace] = digest
        return Tombstones(root, digest, place.tenant, now_s)

    return at
