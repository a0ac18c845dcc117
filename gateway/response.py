"""Responses that drain a source's channel, and the watch for clients that leave before there is one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar
from uuid import UUID

from litestar.response.streaming import ASGIStreamingResponse
from litestar.types import Receive, Scope, Send

from gateway import sse
from gateway.channel import Channel
from gateway.desk import AnyRequest
from gateway.refusal import ClientGone

Result = TypeVar("Result")


class Named(Protocol):
    """A request that has its id."""

    @property
    def request_id(self) -> UUID:
        """Of the request that is charged."""


class Source(Protocol):
    """What a response drains: a pump (`gateway.pump`), or an answer given again (`gateway.retries`)."""

    @property
    def channel(self) -> Channel:
        """Where the answer comes from."""

    @property
    def admitted(self) -> Awaitable[Named]:
        """Ready once there will be an answer, and whose; or raises why not."""

    @property
    def started(self) -> Awaitable[None]:
        """Ready once there is something to send; or raises why not."""

    def begin(self) -> None:
        """The response has its status: from now on a failure is an error frame."""

    def interrupt(self) -> None:
        """End soon: the process stops."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What is sent into a stream that has been silent for so long."""

    frame: bytes
    interval_s: float


class EventStream(ASGIStreamingResponse):
    """Server-sent events out of a source's channel. However it ends, the source learns that nobody reads."""

    def __init__(self, source: Source, heartbeat: Heartbeat, headers: dict[str, str]) -> None:
        super().__init__(
            iterator=_frames(source.channel, heartbeat),
            media_type=sse.MEDIA_TYPE,
            headers={**sse.HEADERS, **headers},
            status_code=200,
        )
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. Litestar ends it when the client leaves; the server cancels it when it stops."""
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            self._source.interrupt()
            raise
        finally:
            self._source.channel.leave()


async def _frames(channel: Channel, heartbeat: Heartbeat) -> AsyncIterator[bytes]:
    while (frames := await channel.receive(heartbeat.interval_s)) is not None:
        yield frames or heartbeat.frame


async def drained(channel: Channel) -> bytes:
    """Read everything a channel will carry."""
    whole = bytearray()
    while (frames := await channel.receive(60.0)) is not None:
        whole += frames
    return bytes(whole)


class Watch:
    """Tells a waiting route when its client leaves. A context; the request body must have been read."""

    def __init__(self, request: AnyRequest, source: Source) -> None:
        self._request = request
        self._source = source
        self._disconnected: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._disconnected = asyncio.create_task(self._disconnect())
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._disconnected is not None
        self._disconnected.cancel()
        await asyncio.gather(self._disconnected, return_exceptions=True)
        if exception[0] is asyncio.CancelledError:
            self._source.interrupt()
        if exception[0] is not None:
            self._source.channel.leave()

    async def wait(self, awaited: Awaitable[Result], timeout_s: float | None = None) -> Result:
        """Wait for one thing.

        Raises:
            ClientGone: the client left first; leaving the context tells the source.
            TimeoutError: neither happened in time; what was awaited goes on.
        """
        assert self._disconnected is not None
        future = asyncio.ensure_future(awaited)
        await asyncio.wait(
            {future, self._disconnected}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if future.done():
            return future.result()
        if self._disconnected.done():
            raise ClientGone
        raise TimeoutError

    async def _disconnect(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
