"""A file that is there whole or not at all."""

import asyncio
import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

BUFFER_BYTES: Final = 1 << 20


class PrivateFile:
    """Readable by this user alone; synced and put in place in one step at the end of the block.

    What leaves the block by an exception leaves no file, and one that was there stays.

    Args:
        path: where it will be. Its folder exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._being_made = path.with_name(f".{path.name}.{os.getpid()}")
        self._pending = bytearray()
        self._file: BinaryIO

    async def __aenter__(self) -> Self:
        self._file = await asyncio.to_thread(self._open)
        return self

    async def write(self, piece: bytes) -> None:
        """Write on, off the loop; raises OSError when there is no room."""
        self._pending += piece
        if len(self._pending) >= BUFFER_BYTES:
            await asyncio.to_thread(self._file.write, bytes(self._pending))
            self._pending.clear()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await asyncio.to_thread(self._put_in_place)
        finally:
            self._file.close()
            self._being_made.unlink(missing_ok=True)

    def _open(self) -> BinaryIO:
        self._being_made.unlink(missing_ok=True)
        return os.fdopen(os.open(self._being_made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")

    def _put_in_place(self) -> None:
        self._file.write(self._pending)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._being_made.replace(self._path)
