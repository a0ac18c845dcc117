"""Valkey's clock as this process sees it: replicas of a gateway may disagree, Valkey does not."""

import asyncio
from datetime import datetime, timedelta

from gateway.admission.hold import EPOCH
from gateway.valkey import Valkey


class ValkeyClock:
    """Valkey's TIME, carried forward by the monotonic clock: for looking ahead; only TIME itself rates."""

    def __init__(self, valkey: Valkey) -> None:
        self._valkey = valkey
        self._seen: tuple[datetime, float] | None = None

    async def now(self) -> datetime:
        """Estimate the present instant; asks Valkey the first time.

        Raises:
            ValkeyUnavailable: it has never been asked with success.
        """
        if self._seen is None:
            seconds, microseconds = await self._valkey.call("TIME")
            self.saw(EPOCH + timedelta(seconds=int(seconds), microseconds=int(microseconds)))
        assert self._seen is not None
        instant, at_s = self._seen
        return instant + timedelta(seconds=asyncio.get_running_loop().time() - at_s)

    def saw(self, instant: datetime) -> None:
        """Take over an instant that Valkey has just told (every admission does)."""
        self._seen = (instant, asyncio.get_running_loop().time())
