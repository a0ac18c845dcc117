"""The store on a directory: ``<root>/<namespace>/<tenant>/<hh>/<hash>.kv``.

The files are the index. Everything that goes wrong is a miss: reading methods return what could be had,
writing methods say whether the block is there now. A file's modification time is the end of its promise; a
file its owner may not write to is kept without a promise, while there is room (`engine.store.evict`). Broken
promises lie in ``<root>/promises`` (`engine.store.tombstone`), leases on what is being loaded in
``<root>/pins`` (`engine.store.pin`).
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from engine.proof.prefix import ROOT_HASH
from engine.retention import RETENTION_S, promise_end_s
from engine.store import block, sweep
from engine.store.block import BlockCorrupt, BlockMissing, BlockName, Term
from engine.store.evict import Evictor, Quotas, Wish, tombstones_of
from engine.store.log import Log
from engine.store.namespace import Namespace, namespaces_of
from engine.store.pin import Pin, Pins
from engine.store.places import GOING, QUARANTINE, Place, Remover
from engine.store.sweep import SweepReport

_WRITE_PAUSE_S: Final = 5
_PREDECESSORS_KEPT_S: Final = 60
_UNLIMITED: Final = Quotas()


class Published(Enum):
    """How a publication ended.

    Written now, there already (its promise renewed), refused by the disk, or without room in its quota: there
    an owed block takes no promise's place, and stays owed.
    """

    WRITTEN = "written"
    RENEWED = "renewed"
    REFUSED = "refused"
    FULL = "full"
    OWED_WITHOUT_ROOM = "owed without room"


class Loaded(Enum):
    """How a load ended; everything but ``LOADED`` is a miss and leaves nothing usable in the buffer."""

    LOADED = "loaded"
    MISSING = "missing"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Match:
    """What the hashes asked for met, in blocks from the first on: first hits, then owed ones, then misses.

    ``owed`` blocks follow the ``blocks`` that are there: they were promised and went early, or lie behind
    such a one and cannot be used. With a ``pin`` (from `TenantBlocks.hold`) hits are not removed until it is
    released or lapses; a load may still miss.
    """

    blocks: int
    owed: int = 0
    pin: Pin | None = field(default=None, compare=False)

    def release(self) -> None:
        """Let the blocks go."""
        if self.pin is not None:
            self.pin.release()


class PrefixStore:
    """A directory of blocks.

    Args:
        root: the directory; made when first needed.
        now_s: the clock, in Unix seconds.
        quotas: limits; none by default.
        classes: seconds that each retention class promises.
        promises: False stores blocks unpromised, for the same seconds while there is room.
    """

    def __init__(
        self,
        root: Path,
        now_s: Callable[[], int],
        quotas: Quotas = _UNLIMITED,
        classes: Mapping[str, int] = RETENTION_S,
        promises: bool = True,
    ) -> None:
        self.promises = promises
        self.root = root
        self.now_s = now_s
        self._classes = classes
        self.pins = Pins(root, now_s)
        self.tombstones = tombstones_of(root, now_s)
        self.log = Log(root)
        self.evictor = Evictor(root, quotas, Remover(self.pins, now_s, self.log), self.tombstones, self.log)
        self._sequence = itertools.count()
        self._writes_resume_s = 0
        self._predecessors: dict[str, tuple[int, list[str]]] = {}
        self._described: dict[str, Namespace] = {}

    def describe(self, namespace: Namespace) -> None:
        """Write a namespace's ``namespace.json``, now and when its folders are made anew.

        A disk that refuses leaves it undescribed.
        """
        self._described[namespace.digest] = namespace
        self.describe_anew(namespace.digest)

    def describe_anew(self, digest: str) -> None:
        """Write a known namespace's description again, if it is gone."""
        namespace = self._described.get(digest)
        if namespace is not None:
            with contextlib.suppress(OSError):
                namespace.write(self.root)

    def namespace(self, digest: str, tenant: str) -> "TenantBlocks":
        """A tenant's blocks in one namespace (64 hex digits: what computed them and how)."""
        return TenantBlocks(self, Place(self.root, digest, tenant))

    def promise_end_s(self, retention_class: str) -> int:
        """Unix second at which a promise made now ends."""
        return promise_end_s(retention_class, self.now_s(), self._classes)

    def predecessors(self, digest: str) -> list[str]:
        """Other namespaces that keep the same promises: an upgrade does not wait for them to be retired."""
        read_at_s, known = self._predecessors.get(digest, (0, []))
        if not read_at_s <= self.now_s() < read_at_s + _PREDECESSORS_KEPT_S:
            promises = Namespace.read(self.root, digest).promises
            others = (Namespace.read(self.root, each) for each in namespaces_of(self.root) if each != digest)
            known = [each.digest for each in others if each.promises == promises]
            self._predecessors[digest] = (self.now_s(), known)
        return known

    def writable(self) -> bool:
        """Whether writing may be tried: after a failed write the disk is left alone for some seconds."""
        return self.now_s() >= self._writes_resume_s

    def pause_writes(self) -> None:
        """Let the disk alone for some seconds."""
        self._writes_resume_s = self.now_s() + _WRITE_PAUSE_S

    def temporary_name(self, path: Path) -> Path:
        """A name beside ``path`` that no other writer uses, on this machine or on another one."""
        unique = f"{os.getpid()}-{threading.get_ident()}-{next(self._sequence)}-{os.urandom(4).hex()}"
        return path.with_name(f"{path.stem}.{unique}.tmp")

    def sweep(self, at_s: int, pause: Callable[[], None] = lambda: None) -> SweepReport:
        """Remove leftovers and what is promised no longer, then keep the quotas. Safe beside running workers.

        Args:
            at_s: now, in Unix seconds.
            pause: called after every folder; a sweep at low priority sleeps here.
        """
        remover = Remover(self.pins, lambda: at_s, self.log)
        walk = sweep.Sweep(self.root, at_s, remover, self.tombstones, pause)
        counts = not self.evictor.quotas.unlimited
        found = {place: blocks for place, blocks in walk.run() if counts}
        return SweepReport(**walk.removed, evicted=self.evictor.enforce(found))

    def check_integrity(self, pause: Callable[[], None] = lambda: None) -> list[str]:
        """Read every visible block; returns one line for each that is not what its name says."""
        return list(sweep.findings(self.root, pause))


class TenantBlocks:
    """Blocks of one tenant in one namespace. Methods may run in any thread."""

    def __init__(self, store: PrefixStore, place: Place) -> None:
        self._store = store
        self._place = place
        self._namespace = bytes.fromhex(place.namespace)
        self._tombstones = store.tombstones(place)
        self._made: set[Path] = set()

    def path(self, block_hash: bytes) -> Path:
        """File of a block."""
        return self._place.path(block_hash)

    def match(self, block_hashes: Sequence[bytes]) -> Match:
        """How many of the blocks, from the first on, are there, and how many after these are owed.

        Renews nothing.

        Args:
            block_hashes: chained 32-byte hashes; the caller leaves out the block of the last prompt token.
        """
        for count, block_hash in enumerate(block_hashes):
            if not self._there(block_hash):
                return Match(count, self.owed(block_hashes[count:]))
        return Match(len(block_hashes))

    def hold(self, block_hashes: Sequence[bytes]) -> Match:
        """`match`, and pin what is there until the match is released; unpinned if the disk refuses."""
        found = self.match(block_hashes)
        if not found.blocks:
            return found
        pin = self._store.pins.take(self._place.name, block_hashes[: found.blocks])
        if pin is None:
            return found
        held = self.match(block_hashes[: found.blocks])
        if held.blocks < found.blocks:
            return Match(held.blocks, self.owed(block_hashes[held.blocks :]), pin)
        return Match(found.blocks, found.owed, pin)

    def owed(self, block_hashes: Sequence[bytes]) -> int:
        """How many blocks are owed, given that the first one is not there.

        A block that is there counts when it lies behind an owed one: the broken promise made it useless.
        """
        for count, block_hash in enumerate(block_hashes):
            if self._tombstones.owes(block_hash) or (count and self._there(block_hash)):
                continue
            if not self._promised_by_predecessor(block_hash):
                return count
        return len(block_hashes)

    def _promised_by_predecessor(self, block_hash: bytes) -> bool:
        """Whether an engine before this one keeps a promised block that this one cannot read."""
        for digest in self._store.predecessors(self._place.namespace):
            with contextlib.suppress(OSError):
                term = Term.of(Place(self._place.root, digest, self._place.tenant).path(block_hash).stat())
                if term.promised and term.ends_s > self._store.now_s():
                    return True
        return False

    def load(self, block_hash: bytes, buffer: memoryview, retention_class: str) -> Loaded:
        """Read a block into ``buffer`` (exactly its size) and renew its promise; quarantine it if corrupt."""
        path, name = self.path(block_hash), BlockName(self._namespace, block_hash)
        try:
            # Whoever wants to remove a block hides it for a moment, and puts it back if it is pinned.
            for shown in (path, path.with_suffix(GOING), path):
                with contextlib.suppress(BlockMissing):
                    block.read(shown, name, buffer)
                    break
            else:
                return Loaded.MISSING
        except BlockCorrupt:
            self.quarantine(block_hash)
            return Loaded.CORRUPT
        self.renew(block_hash, retention_class)
        return Loaded.LOADED

    def renew(self, block_hash: bytes, retention_class: str) -> bool:
        """Promise a stored block anew; False when it is not there. A longer promise is never shortened.

        A block without a promise gets one when none is owed for it and its tenant's quota allows it.
        """
        path = self.path(block_hash)
        try:
            status = path.stat()
            known = Term.of(status)
            if known.promised and not self._store.promises:
                return True  # a promise of another worker, or of before: kept, not prolonged
            promised = known.promised or (
                self._store.promises
                and not self._tombstones.owes(block_hash)
                and self._store.evictor.may_promise(self._place, status.st_size)
            )
            ends_s = max(known.ends_s, self._store.promise_end_s(retention_class))
            term = Term(ends_s, promised)
            if term != known:
                if promised and not known.promised:
                    path.chmod(block.MODE_PROMISED)
                os.utime(path, (ends_s, ends_s))
                newly = status.st_size if promised and not known.promised else 0
                self._store.evictor.renewed(self._place, block_hash, term, newly)
        except FileNotFoundError:
            return False
        except OSError:
            return self._there(block_hash)
        return True

    def keep(self, block_hashes: Sequence[bytes], retention_class: str) -> int | None:
        """Renew blocks that were used; `promised_until` of all of them, None where nothing is promised."""
        for block_hash in block_hashes:
            self.renew(block_hash, retention_class)
        return self.promised_until(block_hashes) if self._store.promises else None

    def publish(
        self,
        block_hash: bytes,
        views: Sequence[memoryview],
        retention_class: str,
        parent: bytes = ROOT_HASH,
    ) -> Published:
        """Store a block unless it is there. The first writer's bytes stay: a hash names tokens, not bytes."""
        if self.renew(block_hash, retention_class):
            return Published.RENEWED
        sealed = self.seal(block_hash, views, retention_class, parent)
        return self.publish_sealed(block_hash, sealed, retention_class)

    def seal(
        self,
        block_hash: bytes,
        views: Sequence[memoryview],
        retention_class: str,
        parent: bytes = ROOT_HASH,
    ) -> block.Sealed:
        """Header and checksum of a block, taken now. ``parent`` is the hash of the block before it."""
        name = BlockName(self._namespace, block_hash)
        return block.seal(name, views, self._store.now_s(), retention_class, parent)

    def publish_sealed(self, block_hash: bytes, sealed: block.Sealed, retention_class: str) -> Published:
        """Write a sealed block.

        REFUSED when the disk does not take it, and then for some seconds at once. FULL or OWED_WITHOUT_ROOM
        when it has no room: it takes no longer promise's place, an owed one no promise's, and none is stored
        without its parent.
        """
        if not self._store.writable():
            return Published.REFUSED
        path, evictor = self.path(block_hash), self._store.evictor
        follows = sealed.parent != ROOT_HASH
        if follows and not evictor.quotas.unlimited and not self._there(sealed.parent):
            return Published.FULL
        ends_s = self._store.promise_end_s(retention_class)
        owed = self._tombstones.owes(block_hash)
        asked = Term(ends_s, promised=self._store.promises and not owed)
        wish, term = Wish(self._place, block_hash, sealed.parent, sealed.file_bytes, asked), None
        try:
            term = evictor.admit(wish)
            if term is None:
                return Published.OWED_WITHOUT_ROOM if owed else Published.FULL
            self._make(path.parent)
            block.write(path, self._store.temporary_name(path), sealed, term)
        except OSError:
            if term is not None:
                evictor.withdraw(wish, term)
            self._made.discard(path.parent)
            self._store.pause_writes()
            return Published.REFUSED
        if follows:
            self.renew(sealed.parent, retention_class)
        return Published.WRITTEN

    def promised_until(self, block_hashes: Sequence[bytes]) -> int | None:
        """Unix second until which all of the blocks are promised or owed; None if one is neither."""
        ends = [self._guaranteed_until(block_hash) for block_hash in block_hashes]
        return min((end for end in ends if end is not None), default=None) if None not in ends else None

    def _guaranteed_until(self, block_hash: bytes) -> int | None:
        try:
            term = Term.of(self.path(block_hash).stat())
            if term.promised:
                return term.ends_s
        except OSError:
            pass
        return self._tombstones.owed_until(block_hash)

    def quarantine(self, block_hash: bytes) -> None:
        """Move a block out of sight, where an operator can look at it; if that fails, remove it."""
        path = self.path(block_hash)
        aside = self._place.folder / QUARANTINE / f"{block_hash.hex()}.{self._store.now_s()}.kv"
        try:
            status = path.stat()
        except OSError:
            return
        try:
            self._make(aside.parent)
            path.replace(aside)
            os.utime(aside, (self._store.now_s(), self._store.now_s()))
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
        size, term = status.st_size, Term.of(status)
        self._store.evictor.withdraw(Wish(self._place, block_hash, ROOT_HASH, size, term), term)

    def _there(self, block_hash: bytes) -> bool:
        return os.path.exists(self._place.file(block_hash))  # noqa: PTH110 -- Path.exists raises on EACCES and EIO

    def _make(self, folder: Path) -> None:
        if folder not in self._made:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._store.describe_anew(self._place.namespace)
            self._made.add(folder)
