"""Settlement: requests that finish while others are being settled share the next durable transaction."""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from billing.db.access import SETTLER
from billing.db.transaction import Database
from billing.errors import StoreRefused, StoreUnavailable
from billing.ledger.balance import BalanceVersion
from billing.money import Femto
from billing.settlement import repository
from billing.settlement.event import UsageEvent
from billing.settlement.idempotency import IdempotencyRecord
from billing.settlement.posting import post
from billing.settlement.quarantine import Quarantined

RETRY_DELAYS_MS: Final = (10, 20, 50, 100, 200, 500, 1000, 1000, 2000, 2000)

_log: Final = logging.getLogger(__name__)

Waiting = tuple[UsageEvent, asyncio.Future[BalanceVersion]]


class Settlement:
    """Flushers in one event loop, each with a transaction of its own.

    One at a time, unless as many events wait as go into a transaction: what arrives meanwhile goes into the
    next, and no timer makes anybody wait. A second one at any time would wait for the balances that the first
    has locked, with events that could have waited for more.

    Args:
        batch_max: events of a transaction at most.
        flushers: transactions at once at most.
        retry_delays_ms: waits between tries while Postgres is away or a deadlock was broken.
    """

    def __init__(
        self,
        database: Database,
        batch_max: int = 256,
        flushers: int = 2,
        retry_delays_ms: Sequence[int] = RETRY_DELAYS_MS,
    ) -> None:
        self._database = database
        self._batch_max = batch_max
        self._flushers_max = flushers
        self._retry_delays_ms = retry_delays_ms
        self._waiting: deque[Waiting] = deque()
        self._running = False
        self._starting = False
        self._flushing = 0
        self._flushers: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Take events from now on."""
        self._running = True

    async def close(self) -> None:
        """Settle what has arrived, then stop; what arrives later is refused."""
        self._running = False
        while self._flushers:
            await asyncio.wait(self._flushers)

    async def settle(self, event: UsageEvent) -> BalanceVersion:
        """Record a request and charge for it, once however often it is asked; returns when that is durable.

        A caller that is cancelled has not undone it.

        Returns:
            The tenant's balance after it; of a request settled before, the present balance.

        Raises:
            StoreRefused: this event cannot be stored: unknown key, other currency, unpublished price row, or
                an idempotency key that another request has answered.
            StoreUnavailable: Postgres stayed away; whether it is settled is not known, and again is safe.
        """
        if not self._running:
            raise StoreUnavailable("settlement is not running")
        settled: asyncio.Future[BalanceVersion] = asyncio.get_running_loop().create_future()
        self._waiting.append((event, settled))
        self._start_due()
        return await settled

    async def settled(self, request_ids: Sequence[UUID]) -> set[UUID]:
        """Which of the requests are decided: they have an event, or are in quarantine and will have none."""
        if not request_ids:
            return set()
        async with self._database.transaction(SETTLER) as connection:
            return await repository.select_settled(connection, request_ids)

    async def charged(self, request_id: UUID) -> Femto:
        """What a settled request was charged; zero for one that has no event."""
        async with self._database.transaction(SETTLER) as connection:
            return await repository.select_charge(connection, request_id)

    async def answered(self, tenant_id: str, key_digest: bytes, at: datetime) -> IdempotencyRecord | None:
        """Which request has answered an idempotency key, unless that has expired by ``at``."""
        async with self._database.transaction(SETTLER) as connection:
            return await repository.select_answer(connection, tenant_id, key_digest, at)

    async def record_lost(self, record: IdempotencyRecord) -> None:
        """Record that the answer to an idempotency key is lost; who has answered it already stays."""
        async with self._database.transaction(SETTLER) as connection:
            await repository.insert_lost(connection, record)

    async def forget_answers(self, at: datetime) -> int:
        """Drop the records of keys that mean nothing any more; returns how many."""
        async with self._database.transaction(SETTLER) as connection:
            return await repository.delete_expired_answers(connection, at)

    async def quarantine(self, usage: Quarantined) -> None:
        """Put usage aside that cannot be billed; once, however often it is asked.

        Raises:
            StoreUnavailable: it is not known whether that was recorded; again is safe.
        """
        _log.error("usage in quarantine", extra={"request_id": str(usage.request_id), "why": usage.reason})
        async with self._database.transaction(SETTLER) as connection:
            await repository.insert_quarantined(connection, usage)

    def _start_due(self) -> None:
        """Start a flusher if one is due; it begins when those who are ready now have come."""
        if self._due() and not self._starting:
            self._starting = True
            flusher = asyncio.create_task(self._run(), name="settlement")
            self._flushers.add(flusher)
            flusher.add_done_callback(self._flushers.discard)

    def _due(self) -> bool:
        """Whether one more transaction is to begin."""
        enough = self._batch_max if self._flushing else 1
        return len(self._waiting) >= enough and self._flushing < self._flushers_max

    async def _run(self) -> None:
        self._starting = False
        while self._due():
            self._flushing += 1
            batch = [self._waiting.popleft() for _ in range(min(self._batch_max, len(self._waiting)))]
            self._start_due()
            await self._flush(batch)
            self._flushing -= 1
            self._starting = True  # again, when those who have just been answered have come with more
            await asyncio.sleep(0)
            self._starting = False

    async def _flush(self, batch: list[Waiting]) -> None:
        """Settle a batch; a poisoned event fails alone. Whatever happens, every caller gets its answer."""
        first_of_each = {event.request_id: event for event, _ in reversed(batch)}
        try:
            balances = await self._post(first_of_each.values())
        except StoreRefused as refusal:
            if len(first_of_each) > 1:
                middle = len(batch) // 2
                await self._flush(batch[:middle])
                await self._flush(batch[middle:])
                return
            _fail(batch, refusal)
        except Exception as error:  # a fault of ours must not leave callers waiting for ever
            _fail(batch, error)
        else:
            for event, settled in batch:
                if not settled.done():
                    settled.set_result(balances[event.request_id])

    async def _post(self, events: Collection[UsageEvent]) -> dict[UUID, BalanceVersion]:
        for delay_ms in self._retry_delays_ms:
            try:
                return await post(self._database, events)
            except StoreUnavailable as failure:
                _log.warning(
                    "settlement is tried again", extra={"reason": failure.reason, "events": len(events)}
                )
                await asyncio.sleep(delay_ms / 1000)
        return await post(self._database, events)


def _fail(batch: list[Waiting], error: Exception) -> None:
    for _, settled in batch:
        if not settled.done():
            settled.set_exception(error)
