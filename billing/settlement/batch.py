"""Settlement: requests that finish within a few milliseconds share one durable transaction."""

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
    """Some flushers in one event loop, each with a transaction of its own: as one waits for the disk, another
    gathers and posts.

    Args:
        flush_interval_ms: how long a flusher gathers before each transaction, unless it is full sooner.
        batch_max: events of a transaction at most.
        flushers: transactions at once at most.
        retry_delays_ms: waits between tries while Postgres is away or a deadlock was broken.
    """

    def __init__(
        self,
        database: Database,
        flush_interval_ms: int = 5,
        batch_max: int = 256,
        flushers: int = 2,
        retry_delays_ms: Sequence[int] = RETRY_DELAYS_MS,
    ) -> None:
        self._database = database
        self._flush_interval_ms = flush_interval_ms
        self._batch_max = batch_max
        self._flushers_max = flushers
        self._retry_delays_ms = retry_delays_ms
        self._waiting: deque[Waiting] = deque()
        self._arrived = asyncio.Event()
        self._closing = False
        self._flushers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the flushers."""
        assert not self._flushers, "settlement is started once"
        self._flushers = [
            asyncio.create_task(self._run(), name="settlement") for _ in range(self._flushers_max)
        ]

    async def close(self) -> None:
        """Settle what has arrived, then stop; what arrives later is refused."""
        self._closing = True
        self._arrived.set()
        await asyncio.gather(*self._flushers)

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
        if self._closing or not self._flushers:
            raise StoreUnavailable("settlement is not running")
        settled: asyncio.Future[BalanceVersion] = asyncio.get_running_loop().create_future()
        self._waiting.append((event, settled))
        self._arrived.set()
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

    async def _run(self) -> None:
        while self._waiting or not self._closing:
            await self._arrived.wait()
            if len(self._waiting) < self._batch_max and not self._closing:
                await asyncio.sleep(self._flush_interval_ms / 1000)
            batch = [self._waiting.popleft() for _ in range(min(self._batch_max, len(self._waiting)))]
            if not self._waiting and not self._closing:
                self._arrived.clear()
            if batch:
                await self._flush(batch)

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
