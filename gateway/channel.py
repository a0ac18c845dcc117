"""The bounded channel between a pump, which owns the request, and the response, which only drains it."""

import asyncio
import sys
from collections import deque

from gateway.refusal import ClientGone


class Channel:
    """One writer, one reader, frames of bytes in order.

    The writer waits while ``frames_max`` are unread. Each side may leave at any time: `close` lets the reader
    finish what is there, `leave` tells the writer that nobody reads any more.
    """

    def __init__(self, frames_max: int) -> None:
        assert frames_max > 0
        self._frames: deque[bytes] = deque()
        self._frames_max = frames_max
        self._closed = False
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self.gone = asyncio.Event()
        self.over = asyncio.Event()  # nobody will read on
        self.delivered = False  # everything was read, and more was asked for

    async def send(self, frame: bytes) -> None:
        """Append one frame.

        Raises:
            ClientGone: the reader has left.
        """
        assert not self._closed
        while not self._writable.is_set() and not self.gone.is_set():
            await self._writable.wait()
        if self.gone.is_set():
            raise ClientGone
        self.append(frame)

    def append(self, frame: bytes) -> None:
        """Append an answer's last frame without waiting for room. Dropped if the reader has left."""
        assert not self._closed
        if self.gone.is_set():
            return
        self._frames.append(frame)
        self._readable.set()
        if self.full:
            self._writable.clear()

    @property
    def full(self) -> bool:
        """Whether the writer has to wait for the reader."""
        return len(self._frames) >= self._frames_max

    def close(self) -> None:
        """No frame follows. Idempotent."""
        self._closed = True
        self._readable.set()

    def leave(self) -> None:
        """Nobody reads any more. Idempotent; a no-op for a channel that is closed and drained."""
        self._frames.clear()
        self.gone.set()
        self.over.set()
        self._writable.set()

    async def receive(self, timeout_s: float) -> bytes | None:
        """Take every frame that waits, joined; ``b""`` if none came in time, None at the end."""
        if not self._readable.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._readable.wait()
            except TimeoutError:
                return b""
        frames = b"".join(self._frames)
        self._frames.clear()
        self._writable.set()
        if not self._closed:
            self._readable.clear()
        if frames or not self._closed:
            return frames
        self.delivered = True
        self.over.set()
        return None


class KeptChannel(Channel):
    """A channel that keeps what is sent through it, read or not.

    Args:
        frames_max: as of any channel; None: the writer waits for no reader, and goes on when it leaves.
        bytes_max: an answer longer than this is not kept.
    """

    def __init__(self, frames_max: int | None, bytes_max: int) -> None:
        super().__init__(sys.maxsize if frames_max is None else frames_max)
        self._outlives_reader = frames_max is None
        self._bytes_max = bytes_max
        self.kept: bytearray | None = bytearray()

    def append(self, frame: bytes) -> None:
        """Keep the frame, and pass it on while somebody reads."""
        if self.kept is not None:
            self.kept += frame
            if len(self.kept) > self._bytes_max:
                self.kept = None
        if not self.over.is_set():
            super().append(frame)

    def leave(self) -> None:
        """Nobody reads any more; the writer learns of it unless it outlives its reader."""
        if self._outlives_reader:
            self._frames.clear()
            self.over.set()
        else:
            super().leave()
