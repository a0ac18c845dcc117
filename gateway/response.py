"""Responses that drain a pump's channel, and the watch for clients that leave before there is a response."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Self, TypeVar

from litestar.response.streaming import ASGIStreamingResponse
from litestar.types import Receive, Scope, Send

from gateway import sse
from gateway.channel import Channel
from gateway.desk import AnyRequest
from gateway.pump import Pump
from gateway.refusal import ClientGone

Result = TypeVar("Result")


class EventStream(ASGIStreamingResponse):
    """Server-sent events out of a pump's channel. However it ends, the pump learns that nobody reads."""

    def __init__(self, pump: Pump, heartbeat_interval_s: float, headers: dict[str, str]) -> None:
        super().__init__(
            iterator=_frames(pump.channel, heartbeat_interval_s),
            media_type=sse.MEDIA_TYPE,
            headers={**sse.HEADERS, **headers},
            status_code=200,
        )
        self._pump = pump

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. Litestar ends it when the client leaves; the server cancels it when it stops."""
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            self._pump.interrupt()
            raise
        finally:
            self._pump.channel.leave()


async def _frames(channel: Channel, heartbeat_interval_s: float) -> AsyncIterator[bytes]:
    while (frames := await channel.receive(heartbeat_interval_s)) is not None:
        yield frames or sse.HEARTBEAT


async def drained(channel: Channel) -> bytes:
    """Read everything a channel will carry."""
    whole = bytearray()
    while (frames := await channel.receive(60.0)) is not None:
        whole += frames
    return bytes(whole)


class Watch:
    """Tells a waiting route when its client leaves. A context; the request body must have been read."""

    def __init__(self, request: AnyRequest, pump: Pump) -> None:
        self._request = request
        self._pump = pump
        self._disconnected: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._disconnected = asyncio.create_task(self._disconnect())
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._disconnected is not None
        self._disconnected.cancel()
        await asyncio.gather(self._disconnected, return_exceptions=True)
        if exception[0] is asyncio.CancelledError:
            self._pump.interrupt()
        if exception[0] is not None:
            self._pump.channel.leave()

    async def wait(self, awaited: Awaitable[Result], timeout_s: float | None = None) -> Result:
        """Wait for one thing.

        Raises:
            ClientGone: the client left first; leaving the context tells the pump.
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
