"""What an operator does with a store: look at it, take a tenant out of it, retire an engine's namespace."""

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine.proof.prefix import BLOCK_TOKENS
from engine.store import pin, survey
from engine.store.block import Term
from engine.store.evict import tombstones_of
from engine.store.log import Change, Log
from engine.store.namespace import Namespace, namespaces_of
from engine.store.pin import Pins
from engine.store.places import Removed, Remover, places_of
from engine.store.tombstone import FOLDER, Reason, tombstones_in


@dataclass(slots=True)
class Held:
    """Blocks of one namespace or of one tenant; bytes are of whole files."""

    blocks: int = 0
    bytes: int = 0
    promised_blocks: int = 0
    promised_bytes: int = 0
    promised_until_s: int = 0

    def count(self, file_bytes: int, term: Term, at_s: int) -> None:
        """Count one block."""
        self.blocks += 1
        self.bytes += file_bytes
        if term.promised and term.ends_s > at_s:
            self.promised_blocks += 1
            self.promised_bytes += file_bytes
            self.promised_until_s = max(self.promised_until_s, term.ends_s)


@dataclass(slots=True)
class Owed:
    """Broken promises that have not ended."""

    blocks: int = 0
    bytes: int = 0
    tokens: int = 0
    until_s: int = 0
    by_reason: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class StoreStat:
    """What a store holds and owes, by namespace (digest) and by tenant."""

    namespaces: dict[str, Held] = field(default_factory=dict)
    described: dict[str, Namespace] = field(default_factory=dict)
    tenants: dict[str, Held] = field(default_factory=dict)
    owed: dict[str, Owed] = field(default_factory=dict)
    quota_bytes: int | None = None

    @property
    def blocks(self) -> int:
        """Blocks of the whole store."""
        return sum(held.blocks for held in self.namespaces.values())

    @property
    def bytes(self) -> int:
        """Bytes of all block files."""
        return sum(held.bytes for held in self.namespaces.values())

    @property
    def room_for_owed_bytes(self) -> int | None:
        """What is free or not promised: beyond it owed blocks are not stored again. None: no quota."""
        promised = sum(held.promised_bytes for held in self.namespaces.values())
        return None if self.quota_bytes is None else max(0, self.quota_bytes - promised)


def stat(root: Path, at_s: int, pause: Callable[[], None] = lambda: None) -> StoreStat:
    """Walk a store and count; ``pause`` is called after each folder."""
    found = StoreStat(quota_bytes=survey.quota_of(root))
    for digest in namespaces_of(root):
        found.described[digest] = Namespace.read(root, digest)
        by_namespace = found.namespaces[digest] = Held()
        for place in places_of(root, digest):
            by_tenant = found.tenants.setdefault(place.tenant, Held())
            for _, status in place.blocks(pause):
                for held in (by_namespace, by_tenant):
                    held.count(status.st_size, Term.of(status), at_s)
    tokens_of = {each.promises: each.block_tokens for each in found.described.values()}
    for path, tombstone in tombstones_in(root):
        if tombstone.ends_s > at_s:
            owed = found.owed.setdefault(tombstone.tenant, Owed())
            owed.blocks += 1
            owed.bytes += tombstone.block_bytes
            owed.tokens += tokens_of.get(path.parents[2].name, BLOCK_TOKENS)
            owed.until_s = max(owed.until_s, tombstone.ends_s)
            owed.by_reason[tombstone.reason.value] += 1
    return found


@dataclass(frozen=True, slots=True)
class Erased:
    """What was removed of a tenant."""

    blocks: int
    tombstones: int


def erase(root: Path, tenant: str, pause: Callable[[], None] = lambda: None) -> Erased:
    """Remove all of a tenant: blocks, quarantined ones, tombstones, and pins that name it.

    Nothing is owed for it afterwards. Workers that are loading from it see misses.

    Raises:
        OSError: something could not be removed; run it again.
    """
    blocks, tombstones, log = 0, 0, Log(root)
    for place in list(places_of(root)):
        if place.tenant == tenant:
            found = list(place.blocks(pause))
            blocks += len(found)
            _remove_tree(place.folder)
            for block_hash, status in found:
                size, term = status.st_size, Term.of(status)
                log.left(Change(-size, -size * term.promised, place.name, block_hash, term))
    for folder in (root / FOLDER).glob(f"*/{tenant}"):
        tombstones += sum(1 for file in folder.rglob("*") if file.is_file())
        _remove_tree(folder)
    for file in (root / pin.FOLDER).glob(f"*{pin.SUFFIX}"):
        if any(line.split("/")[1:2] == [tenant] for line in _lines(file)):
            file.unlink(missing_ok=True)
    return Erased(blocks, tombstones)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except FileNotFoundError:
        return []  # released meanwhile


def _remove_tree(folder: Path) -> None:
    """Remove a folder, and what a worker puts into it meanwhile."""
    for tries_left in (2, 1, 0):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            if not folder.exists():
                return
        except OSError:
            if not tries_left:
                raise


@dataclass(frozen=True, slots=True)
class Retired:
    """What retiring a namespace has removed; ``spared`` blocks were being loaded or were just renewed."""

    blocks: int = 0
    owed_blocks: int = 0
    spared: int = 0


def retire(
    root: Path,
    digest: str,
    reason: Reason,
    now_s: Callable[[], int],
    pause: Callable[[], None] = lambda: None,
) -> Retired:
    """Remove a namespace's blocks; promises that have not ended become tombstones to their end."""
    remover, tombstones = Remover(Pins(root, now_s), now_s, Log(root)), tombstones_of(root, now_s)
    blocks = owed = spared = 0
    for place in places_of(root, digest):
        for block_hash, status in place.blocks(pause):
            term = Term.of(status)
            done = remover.remove(place, block_hash, term, tombstones(place), reason)
            if done is Removed.REMOVED:
                blocks += 1
                owed += term.promised and term.ends_s > now_s()
            elif done is not Removed.GONE:
                spared += 1
    if not any(True for place in places_of(root, digest) for _ in place.blocks()):
        shutil.rmtree(root / digest, ignore_errors=True)
    return Retired(blocks, owed, spared)
