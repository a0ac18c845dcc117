"""Clients that ask again: by an idempotency key, or silently as SDKs do, up to three times."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import httpx

from gateway.retries import KEY_HEADER, RETRY_HEADER
from tests.chaos.client import Question, Seen, ask

RETRIES_MAX: Final = 3
PAUSE_S: Final = 0.5  # doubled each time; SDKs wait as long where no Retry-After asks for more
ASKED_AGAIN: Final = frozenset((408, 409, 429, *range(500, 600)))


@dataclass(slots=True)
class Errand:
    """What one client wants once, and all it saw on the way. ``key`` None: it asks again as SDKs do."""

    client: int
    question: Question
    key: str | None
    seen: list[Seen] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"errand {self.question.number}"

    async def run(self, http: httpx.AsyncClient, model: str, now_s: Callable[[], float]) -> None:
        """Ask until there is an answer, or no more is to be tried."""
        for retry in range(1 + RETRIES_MAX):
            headers = {RETRY_HEADER: str(retry)} if self.key is None else {KEY_HEADER: self.key}
            self.seen.append(await ask(http, model, replace(self.question, headers=headers), now_s))
            if not self._wants_more():
                return
            await asyncio.sleep(PAUSE_S * 2**retry)

    def _wants_more(self) -> bool:
        """SDKs hand a stream on when it begins, and see no more of it; who has a key asks for it again."""
        last = self.seen[-1]
        if last.ending != "error":
            return False
        begun = last.status == 200
        return last.status is None or last.status in ASKED_AGAIN or (begun and not self._hands_on)

    @property
    def _hands_on(self) -> bool:
        return self.question.streamed and self.key is None


def key_name(client: int) -> str:
    """Name of a client's API key."""
    return f"client {client}"
