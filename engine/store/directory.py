"""The store on a directory: ``<root>/<namespace>/<tenant>/<hh>/<hash>.kv``.

The files are the index. Everything that goes wrong is a miss: reading methods return what could be had,
writing methods say whether the block is there now. A file's modification time is the end of its promise.

Issue 3 adds quotas, eviction in the order of promise ends and tombstones for promises broken early; until
then blocks leave when their promise has ended.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from engine.retention import promise_end_s
from engine.store import block
from engine.store.block import BlockCorrupt, BlockMissing, BlockName

_QUARANTINE: Final = "quarantine"
_QUARANTINE_KEPT_S: Final = 7 * 86_400
_TEMPORARY_KEPT_S: Final = 60
_WRITE_PAUSE_S: Final = 5


class Published(Enum):
    """How a publication ended: written now, there already (its promise renewed), or refused by the disk."""

    WRITTEN = "written"
    RENEWED = "renewed"
    REFUSED = "refused"


class Loaded(Enum):
    """How a load ended; everything but ``LOADED`` is a miss and leaves nothing usable in the buffer."""

    LOADED = "loaded"
    MISSING = "missing"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Match:
    """Longest stored prefix of the hashes asked for, in blocks. Not a lease: a load may still miss."""

    blocks: int


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep removed: leftovers of killed writers, blocks past their promise, old quarantined files."""

    temporary: int = 0
    expired: int = 0
    quarantined: int = 0


class PrefixStore:
    """A directory of blocks.

    Args:
        root: the directory; made when first needed.
        now_s: the clock, in Unix seconds.
    """

    def __init__(self, root: Path, now_s: Callable[[], int]) -> None:
        self._root = root
        self.now_s = now_s
        self._sequence = itertools.count()
        self._writes_resume_s = 0

    def namespace(self, digest: str, tenant: str) -> "TenantBlocks":
        """A tenant's blocks in one namespace (64 hex digits: what computed them and how)."""
        return TenantBlocks(self, self._root / digest / tenant, bytes.fromhex(digest))

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

    def sweep(self, at_s: int) -> SweepReport:
        """Remove leftovers and what is promised no longer. Safe beside running workers."""
        temporary = expired = quarantined = 0
        for path in self._files():
            with contextlib.suppress(OSError):
                status = path.stat()
                ends_s = status.st_mtime
                if path.suffix == ".tmp":
                    if status.st_ctime < at_s - _TEMPORARY_KEPT_S:
                        path.unlink()
                        temporary += 1
                elif path.parent.name == _QUARANTINE:
                    if ends_s < at_s - _QUARANTINE_KEPT_S:
                        path.unlink()
                        quarantined += 1
                elif path.suffix == ".kv" and ends_s <= at_s:
                    path.unlink()
                    expired += 1
        return SweepReport(temporary, expired, quarantined)

    def check_integrity(self) -> list[str]:
        """Read every visible block; returns one line for each that is not what its name says."""
        findings: list[str] = []
        for path in self._files():
            if path.suffix != ".kv" or path.parent.name == _QUARANTINE:
                continue
            try:
                namespace, block_hash = path.parent.parent.parent.name, path.stem
                if path.parent.name != block_hash[:2]:
                    findings.append(f"{path}: in the wrong folder")
                name = BlockName(bytes.fromhex(namespace), bytes.fromhex(block_hash))
                payload = bytearray(max(0, path.stat().st_size - block.HEADER_BYTES))
                block.read(path, name, memoryview(payload))
            except BlockMissing:
                continue  # removed since the walk began
            except (BlockCorrupt, ValueError, OSError) as error:
                findings.append(f"{path}: {error}")
        return findings

    def _files(self) -> Iterator[Path]:
        for folder, _, names in os.walk(self._root):
            for name in names:
                yield Path(folder) / name


class TenantBlocks:
    """Blocks of one tenant in one namespace. Methods may run in any thread."""

    def __init__(self, store: PrefixStore, folder: Path, namespace: bytes) -> None:
        self._store = store
        self._folder = folder
        self._namespace = namespace
        self._made: set[Path] = set()

    def path(self, block_hash: bytes) -> Path:
        """File of a block."""
        digits = block_hash.hex()
        return self._folder / digits[:2] / f"{digits}.kv"

    def match(self, block_hashes: Sequence[bytes]) -> Match:
        """How many of the blocks, from the first on, are there. Renews nothing.

        Args:
            block_hashes: chained 32-byte hashes; the caller leaves out the block of the last prompt token.
        """
        for count, block_hash in enumerate(block_hashes):
            if not os.path.exists(self.path(block_hash)):  # noqa: PTH110 -- Path.exists raises on EACCES and EIO
                return Match(count)
        return Match(len(block_hashes))

    def load(self, block_hash: bytes, buffer: memoryview, retention_class: str) -> Loaded:
        """Read a block into ``buffer`` (exactly its size) and renew its promise; quarantine it if corrupt."""
        path = self.path(block_hash)
        try:
            block.read(path, BlockName(self._namespace, block_hash), buffer)
        except BlockMissing:
            return Loaded.MISSING
        except BlockCorrupt:
            self.quarantine(block_hash)
            return Loaded.CORRUPT
        self.renew(block_hash, retention_class)
        return Loaded.LOADED

    def renew(self, block_hash: bytes, retention_class: str) -> bool:
        """Promise a stored block anew; False when it is not there. A longer promise is never shortened."""
        path = self.path(block_hash)
        ends_s = promise_end_s(retention_class, self._store.now_s())
        try:
            if path.stat().st_mtime < ends_s:
                os.utime(path, (ends_s, ends_s))
        except FileNotFoundError:
            return False
        except OSError:
            return os.path.exists(path)  # noqa: PTH110 -- see match
        return True

    def publish(self, block_hash: bytes, views: Sequence[memoryview], retention_class: str) -> Published:
        """Store a block unless it is there. The first writer's bytes stay: a hash names tokens, not bytes."""
        if self.renew(block_hash, retention_class):
            return Published.RENEWED
        return self.publish_sealed(block_hash, self.seal(block_hash, views, retention_class), retention_class)

    def seal(self, block_hash: bytes, views: Sequence[memoryview], retention_class: str) -> block.Sealed:
        """Header and checksum of a block, taken now."""
        name = BlockName(self._namespace, block_hash)
        return block.seal(name, views, self._store.now_s(), retention_class)

    def publish_sealed(self, block_hash: bytes, sealed: block.Sealed, retention_class: str) -> Published:
        """Write a sealed block; REFUSED when the disk does not take it, and then for some seconds at once."""
        if not self._store.writable():
            return Published.REFUSED
        path = self.path(block_hash)
        ends_s = promise_end_s(retention_class, self._store.now_s())
        try:
            self._make(path.parent)
            block.write(path, self._store.temporary_name(path), sealed, ends_s)
        except OSError:
            self._made.discard(path.parent)
            self._store.pause_writes()
            return Published.REFUSED
        return Published.WRITTEN

    def promised_until(self, block_hashes: Sequence[bytes]) -> int | None:
        """Unix second until which all of the blocks are promised; None if one is missing or none is named."""
        try:
            return min((int(self.path(each).stat().st_mtime) for each in block_hashes), default=None)
        except OSError:
            return None

    def quarantine(self, block_hash: bytes) -> None:
        """Move a block out of sight, where an operator can look at it; if that fails, remove it."""
        path = self.path(block_hash)
        aside = self._folder / _QUARANTINE / f"{block_hash.hex()}.{self._store.now_s()}.kv"
        try:
            self._make(aside.parent)
            path.replace(aside)
            os.utime(aside, (self._store.now_s(), self._store.now_s()))
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()

    def _make(self, folder: Path) -> None:
        if folder not in self._made:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._made.add(folder)
