"""One block in one file: a header of 152 bytes, then the opaque bytes of the block.

The header names the namespace and the chained hash of the block, so a file that was moved or renamed is never
taken for another, and a BLAKE3 checksum of the payload. Files are written under a temporary name and renamed:
a block is visible when it is whole. There is no fsync: after a power cut a torn block fails its checksum,
which is a miss.

BlockError
├── BlockMissing      no such file, or it cannot be read
└── BlockCorrupt      a file that is not, bit for bit, the block it is named after
"""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blake3 import blake3

_MAGIC: Final = b"KVITTO01"
# magic, namespace, block hash, payload checksum, payload bytes, created (Unix s), retention class
_HEADER: Final = struct.Struct(">8s32s32s32sQQ32s")
HEADER_BYTES: Final = _HEADER.size
_IOV_MAX: Final = 512


class BlockError(Exception):
    """Root of what can go wrong with one file of the store."""


class BlockMissing(BlockError):
    """There is no readable file of that name."""


class BlockCorrupt(BlockError):
    """The file is not the block it is named after; ``reason`` says which check failed."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path.name}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Sealed:
    """A block ready to be written: its header holds the checksum that ``views`` had when it was sealed.

    ``views`` may alias the KV cache. When the cache changes before they are written, the file fails its
    checksum on reading: a late write can lose a block, never falsify one.
    """

    header: bytes
    views: Sequence[memoryview]


@dataclass(frozen=True, slots=True)
class BlockName:
    """What a block is: 32 bytes of namespace digest and 32 bytes of chained hash."""

    namespace: bytes
    block_hash: bytes


def seal(name: BlockName, views: Sequence[memoryview], created_s: int, retention_class: str) -> Sealed:
    """Compute header and checksum of a block whose payload is the concatenation of ``views`` (bytes)."""
    checksum = blake3()
    for view in views:
        checksum.update(view)
    payload_bytes = sum(view.nbytes for view in views)
    label = retention_class.encode()[:32]
    header = _HEADER.pack(
        _MAGIC, name.namespace, name.block_hash, checksum.digest(), payload_bytes, created_s, label
    )
    return Sealed(header, views)


def write(path: Path, temporary: Path, sealed: Sealed, promised_until_s: int) -> None:
    """Write a block and make it visible; its modification time is the end of its promise (Unix s).

    Raises:
        OSError: nothing became visible; the temporary file is gone unless the disk refuses that too.
    """
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            _write_all(descriptor, [memoryview(sealed.header), *sealed.views])
            os.utime(descriptor, (promised_until_s, promised_until_s))
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_all(descriptor: int, views: list[memoryview]) -> None:
    pending = [view for view in views if view.nbytes]
    while pending:
        written = os.writev(descriptor, pending[:_IOV_MAX])
        while pending and written >= pending[0].nbytes:
            written -= pending.pop(0).nbytes
        if pending and written:
            pending[0] = pending[0][written:]


def read(path: Path, name: BlockName, payload: memoryview) -> None:
    """Fill ``payload`` with the block's bytes; only when this returns are they what was published.

    Args:
        path: the block's file.
        name: the block that the caller wants.
        payload: writable bytes, exactly as long as the block.

    Raises:
        BlockMissing: no readable file.
        BlockCorrupt: wrong magic, namespace, hash, length or checksum.
    """
    header = bytearray(HEADER_BYTES)
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if file.readinto(header) != HEADER_BYTES:
                raise BlockCorrupt(path, "the header is short")
            checksum = _expect(path, bytes(header), name, payload.nbytes)
            if size != HEADER_BYTES + payload.nbytes:
                raise BlockCorrupt(path, f"{size} bytes in the file")
            filled = 0
            while filled < payload.nbytes:
                count = file.readinto(payload[filled:])
                if not count:
                    raise BlockCorrupt(path, "the payload is short")
                filled += count
    except OSError as error:
        raise BlockMissing(f"{path.name}: {error.strerror}") from error
    if blake3(payload).digest() != checksum:
        raise BlockCorrupt(path, "the checksum does not match")


def _expect(path: Path, header: bytes, name: BlockName, payload_bytes: int) -> bytes:
    magic, namespace, block_hash, checksum, length, _created, _label = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise BlockCorrupt(path, "not a block of this version")
    if namespace != name.namespace or block_hash != name.block_hash:
        raise BlockCorrupt(path, "another block's file")
    if length != payload_bytes:
        raise BlockCorrupt(path, f"{length} payload bytes, {payload_bytes} expected")
    return bytes(checksum)
