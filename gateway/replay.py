"""An answer given again: now, or when the request that makes it is done."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from gateway.channel import Channel
from gateway.kept import Ask, Conflict, Kept, KeptAnswer, Lost, Running
from gateway.refusal import (
    Draining,
    IdempotencyKeyReused,
    IdempotencyResultLost,
    OriginalFailed,
    ValkeyUnavailable,
)

JOIN_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Original:
    """The request whose answer is given again."""

    request_id: UUID


class Replay:
    """What a response drains in place of a pump (`gateway.response.Source`); ``broken`` frames a failure."""

    def __init__(self, broken: Callable[[Exception], bytes]) -> None:
        loop = asyncio.get_running_loop()
        self.channel = Channel(1)
        self.admitted: asyncio.Future[Original] = loop.create_future()
        self.started: asyncio.Future[None] = loop.create_future()
        self.following: asyncio.Task[None] | None = None
        self._begun = False
        self._broken = broken

    def begin(self) -> None:
        """See `Source`."""
        self._begun = True

    def interrupt(self) -> None:
        """See `Source`."""
        if self.following is not None:
            self.following.cancel()

    def name(self, request_id: UUID) -> None:
        """Say whose answer it will be."""
        if not self.admitted.done():
            self.admitted.set_result(Original(request_id))

    def give(self, found: KeptAnswer) -> None:
        """Answer. Nothing follows."""
        self.name(found.request_id)
        self.channel.append(found.answer)
        self.channel.close()
        self.started.set_result(None)

    def fail(self, error: Exception) -> None:
        """Answer an error, as a frame where the answer has its status already. Nothing follows."""
        for future in (self.admitted, self.started):
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved: the response may have left already
        if self._begun:
            self.channel.append(self._broken(error))
        self.channel.close()


async def follow(kept: Kept, ask: Ask, replay: Replay) -> None:
    """Wait for the answer to a key that another request is answering, and give it."""
    gone = replay.channel.gone
    try:
        while not gone.is_set():
            match await kept.claim(ask, ""):
                case KeptAnswer() as found:
                    return replay.give(found)
                case Running(request_id):
                    if request_id is not None:
                        replay.name(request_id)
                case ended:
                    return replay.fail(_failure(ended))
            try:
                async with asyncio.timeout(JOIN_POLL_S):
                    await gone.wait()
            except TimeoutError:
                continue
    except ValkeyUnavailable as error:
        return replay.fail(error)
    except asyncio.CancelledError:
        replay.fail(Draining())
        raise


def _failure(ended: object) -> Exception:
    match ended:
        case Lost(reason):
            return IdempotencyResultLost(reason)
        case Conflict():
            return IdempotencyKeyReused()
        case _:
            return OriginalFailed()
