"""One block in one file: a header of 184 bytes, then the opaque bytes of the block.

The header names the namespace and the chained hash of the block, so a file that was moved or renamed is never
taken for another, a BLAKE3 checksum of the payload, and the block's parent, so that eviction can go leaf
first. Files of the first version (152 bytes, no parent) stay readable.

Files are written under a temporary name and renamed: a block is visible when it is whole. There is no fsync:
after a power cut a torn block fails its checksum, which is a miss.

BlockError
├── BlockMissing      no such file, or it cannot be read
└── BlockCorrupt      a file that is not, bit for bit, the block it is named after
"""

import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from blake3 import blake3

from engine.proof.prefix import ROOT_HASH

_MAGIC_WITHOUT_PARENT: Final = b"KVITTO01"
_MAGIC: Final = b"KVITTO02"
# magic, namespace, block hash, payload checksum, payload bytes, created (Unix s), retention class
_HEADER: Final = struct.Struct(">8s32s32s32sQQ32s")
HASH_BYTES: Final = 32
HEADER_BYTES: Final = _HEADER.size + HASH_BYTES  # the parent's hash comes last
MODE_PROMISED: Final = 0o600
MODE_UNPROMISED: Final = 0o400
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
    parent: bytes

    @property
    def file_bytes(self) -> int:
        """Size of the file it becomes."""
        return len(self.header) + sum(view.nbytes for view in self.views)


@dataclass(frozen=True, slots=True)
class BlockName:
    """What a block is: 32 bytes of namespace digest and 32 bytes of chained hash."""

    namespace: bytes
    block_hash: bytes


@dataclass(frozen=True, slots=True)
class Header:
    """What a block's file says of itself. ``parent`` is `ROOT_HASH` for a first block and for old files."""

    name: BlockName
    checksum: bytes
    payload_bytes: int
    created_s: int
    retention_class: str
    parent: bytes
    header_bytes: int


@dataclass(frozen=True, slots=True)
class Term:
    """How long a file is kept (Unix s), and whether that is a promise or only while there is room.

    On disk: the modification time, and the owner's write permission.
    """

    ends_s: int
    promised: bool = True

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """The term that a file's status tells."""
        return cls(int(status.st_mtime), bool(status.st_mode & stat.S_IWUSR))


def seal(
    name: BlockName,
    views: Sequence[memoryview],
    created_s: int,
    retention_class: str,
    parent: bytes = ROOT_HASH,
) -> Sealed:
    """Compute header and checksum of a block whose payload is the concatenation of ``views`` (bytes)."""
    checksum = blake3()
    for view in views:
        checksum.update(view)
    payload_bytes = sum(view.nbytes for view in views)
    label = retention_class.encode()[:32]
    header = _HEADER.pack(
        _MAGIC, name.namespace, name.block_hash, checksum.digest(), payload_bytes, created_s, label
    )
    return Sealed(header + parent, views, parent)


def write(path: Path, temporary: Path, sealed: Sealed, term: Term) -> None:
    """Write a block and make it visible, with its term.

    Raises:
        OSError: nothing became visible; the temporary file is gone unless the disk refuses that too.
    """
    mode = MODE_PROMISED if term.promised else MODE_UNPROMISED
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            _write_all(descriptor, [memoryview(sealed.header), *sealed.views])
            os.utime(descriptor, (term.ends_s, term.ends_s))
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
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            header = _header(path, file.read(HEADER_BYTES))
            file.seek(header.header_bytes)
            _expect(path, header, name, payload.nbytes)
            if size != header.header_bytes + payload.nbytes:
                raise BlockCorrupt(path, f"{size} bytes in the file")
            filled = 0
            while filled < payload.nbytes:
                count = file.readinto(payload[filled:])
                if not count:
                    raise BlockCorrupt(path, "the payload is short")
                filled += count
    except OSError as error:
        raise BlockMissing(f"{path.name}: {error.strerror}") from error
    if blake3(payload).digest() != header.checksum:
        raise BlockCorrupt(path, "the checksum does not match")


def read_header(path: Path) -> Header:
    """The header alone, unchecked; raises BlockMissing or BlockCorrupt."""
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            return _header(path, os.read(file, HEADER_BYTES))
        finally:
            os.close(file)
    except OSError as error:
        raise BlockMissing(f"{path.name}: {error.strerror}") from error


def verify(path: Path, name: BlockName) -> None:
    """Read a whole file and check it against its name; raises BlockMissing or BlockCorrupt."""
    payload_bytes = read_header(path).payload_bytes
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BlockMissing(f"{path.name}: {error.strerror}") from error
    if payload_bytes > size:
        raise BlockCorrupt(path, f"{size} bytes in the file")
    read(path, name, memoryview(bytearray(payload_bytes)))


def _header(path: Path, start: bytes) -> Header:
    """Read a header from the first bytes of a file."""
    if len(start) < _HEADER.size:
        raise BlockCorrupt(path, "the header is short")
    magic, namespace, block_hash, checksum, length, created_s, label = _HEADER.unpack_from(start)
    if magic == _MAGIC:
        parent = start[_HEADER.size :]
        if len(parent) != HASH_BYTES:
            raise BlockCorrupt(path, "the header is short")
    elif magic == _MAGIC_WITHOUT_PARENT:
        parent = b""
    else:
        raise BlockCorrupt(path, "not a block of a version we know")
    return Header(
        name=BlockName(namespace, block_hash),
        checksum=checksum,
        payload_bytes=length,
        created_s=created_s,
        retention_class=label.rstrip(b"\0").decode(errors="replace"),
        parent=parent or ROOT_HASH,
        header_bytes=_HEADER.size + len(parent),
    )


def _expect(path: Path, header: Header, name: BlockName, payload_bytes: int) -> None:
    if header.name != name:
        raise BlockCorrupt(path, "another block's file")
    if header.payload_bytes != payload_bytes:
        raise BlockCorrupt(path, f"{header.payload_bytes} payload bytes, {payload_bytes} expected")
