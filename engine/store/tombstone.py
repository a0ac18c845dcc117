"""Broken promises: a tombstone stays where a promised block was removed early, until the promise's end.

``<root>/promises/<promise digest>/<tenant>/<hh>/<hash>.owed``; its modification time is the end of the
promise, its one line says why it was broken and how many bytes the block had. Promises are keyed apart
from engine versions (`engine.store.namespace`): a block's hash covers scope and tokens, the digest weights,
tokenizer and block size. A tombstone is never renewed, whoever meets it, so what is owed only ever gets less.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

FOLDER: Final = "promises"
SUFFIX: Final = ".owed"


class Reason(Enum):
    """Who broke a promise: the deployment's quota, an operator's hand, or an upgrade."""

    QUOTA = "quota"
    OPERATOR = "operator"
    UPGRADE = "upgrade"


@dataclass(frozen=True, slots=True)
class Tombstone:
    """One broken promise. ``ends_s`` is the Unix second at which it would have ended."""

    tenant: str
    block_hash: bytes
    ends_s: int
    reason: Reason
    block_bytes: int


class Tombstones:
    """Broken promises towards one tenant under one promise digest. Methods may run in any thread."""

    def __init__(self, root: Path, promises: str, tenant: str, now_s: Callable[[], int]) -> None:
        self._folder = root / FOLDER / promises / tenant
        self._tenant = tenant
        self._now_s = now_s

    def path(self, block_hash: bytes) -> Path:
        """File of a tombstone."""
        digits = block_hash.hex()
        return self._folder / digits[:2] / f"{digits}{SUFFIX}"

    def owes(self, block_hash: bytes) -> bool:
        """Whether the block is owed now."""
        return self.owed_until(block_hash) is not None

    def owed_until(self, block_hash: bytes) -> int | None:
        """Unix second until which the block is owed; None when it is not owed now."""
        try:
            ends_s = int(self.path(block_hash).stat().st_mtime)
        except OSError:
            return None
        return ends_s if ends_s > self._now_s() else None

    def put(self, block_hash: bytes, ends_s: int, reason: Reason, block_bytes: int) -> bool:
        """Remember a broken promise until its end; an earlier, longer one stays. False: the disk refused."""
        path = self.path(block_hash)
        temporary = path.with_name(f"{path.stem}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
        try:
            if path.exists() and path.stat().st_mtime >= ends_s:
                return True
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary.write_text(f"{reason.value} {block_bytes}\n")
            os.utime(temporary, (ends_s, ends_s))
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            return False
        return True


def tombstones_in(root: Path) -> Iterator[tuple[Path, Tombstone]]:
    """Every readable tombstone of a store, past ones too."""
    for folder, _, names in os.walk(root / FOLDER):
        tenant = Path(folder).parent.name
        for name in names:
            path = Path(folder) / name
            if path.suffix == SUFFIX:
                with contextlib.suppress(OSError, ValueError):
                    yield path, _read(path, tenant)


def _read(path: Path, tenant: str) -> Tombstone:
    reason, size = path.read_text().split()
    return Tombstone(tenant, bytes.fromhex(path.stem), int(path.stat().st_mtime), Reason(reason), int(size))
