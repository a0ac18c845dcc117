"""The bounded channel between a pump, which owns the request, and the response, which only drains it."""

import asyncio
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
        return frames or (None if self._closed else b"")
