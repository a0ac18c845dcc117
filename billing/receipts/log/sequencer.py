"""The one sequencer: gives receipts their places in the log, batch by batch, each under a signed head.

A batch takes all events recorded since the last cut and before the next one, which nothing is recorded
before any more. What it is to append is made outside of any transaction; one transaction then locks the
log's end, sees that it has not moved, and appends leaves, nodes and head together. So any number of
sequencers may run: those that were slower find the end moved, and begin anew. An answer that was lost is
found again in the end, too.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from billing.db.access import OWNER, SETTLER
from billing.db.horizon import select_horizon
from billing.db.transaction import Connection, Database
from billing.receipts import merkle
from billing.receipts.head import TreeHead
from billing.receipts.log import repository
from billing.receipts.log.head import LogEnd, StoredHead
from billing.receipts.log.leaf import Leaf, Recorded, shuffled
from billing.receipts.merkle import Node
from billing.receipts.receipt import Kept
from billing.receipts.repository import select_documents
from engine.proof.ring import RingSigner

_HOUR: Final = timedelta(hours=1)
_INSTANT: Final = timedelta(microseconds=1)  # between two that Postgres tells apart


@dataclass(frozen=True, slots=True)
class Pace:
    """When receipts are sealed.

    Args:
        late: how long after its event what is attested of a request has time to come.
        certificate_late: how long after it the certificates of those who attest it have; the log waits.
        batch: events of a head at most, unless more were recorded at one instant.
    """

    late: timedelta = timedelta(minutes=11)
    certificate_late: timedelta = _HOUR
    batch: int = 8_192


@dataclass(frozen=True, slots=True)
class _Read:
    """What a batch is made from."""

    end: LogEnd
    until: datetime
    recorded: Sequence[Recorded]
    frontier: Mapping[Node, bytes]
    last_at_s: int


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one transaction appends."""

    end: LogEnd
    leaves: Sequence[Leaf]
    nodes: Mapping[Node, bytes]
    head: StoredHead | None


class Sequencer:
    """Appends to the log.

    Args:
        signer: signs heads.
        pace: when receipts are sealed.
    """

    def __init__(self, database: Database, signer: RingSigner, pace: Pace) -> None:
        self._database = database
        self._signer = signer
        self._pace = pace
        self._stretch = _HOUR

    async def seal(self, now: datetime) -> StoredHead | None:
        """Append all that can be; returns the last head that this made.

        Raises:
            StoreUnavailable: what was sealed until then stays; the same again is safe.
        """
        last = None
        async with self._database.transaction(OWNER) as connection:
            horizon = await select_horizon(connection, self._pace.late)
        while True:
            read = await self._read(horizon)
            if read.until == read.end.sealed_before:
                return last
            batch = await asyncio.to_thread(self._batch, read, int(now.timestamp()))
            if await self._append(read.end, batch):
                last = batch.head or last

    async def begin(self, now: datetime) -> None:
        """Sign a head of the empty log, so that a period can close at it."""
        async with self._database.transaction(SETTLER) as connection:
            end = await repository.select_end(connection, lock=True)
            if end.size == 0:
                head = self._signed(end, merkle.EMPTY_ROOT, int(now.timestamp()))
                await repository.insert_head(connection, head)

    async def _read(self, horizon: datetime) -> _Read:
        async with self._database.transaction(SETTLER) as connection:
            end = await repository.select_end(connection)
            until = await self._until(connection, end.sealed_before, max(end.sealed_before, horizon))
            recorded = await _recorded(connection, end.sealed_before, until)
            open_since = await self._first_uncertified(connection, recorded, horizon)
            if open_since is not None:
                until = open_since
                recorded = [one for one in recorded if one.recorded_at < until]
            frontier = await repository.select_nodes(connection, merkle.cover((0, end.size)))
            newest = await repository.select_newest_head(connection)
        return _Read(end, until, recorded, frontier, newest.head.at_s if newest else 0)

    async def _until(self, connection: Connection, since: datetime, horizon: datetime) -> datetime:
        """How far a batch goes: a stretch grows over quiet times, and shrinks to what a batch takes."""
        batch = self._pace.batch
        until = min(since + self._stretch, horizon)

        async def found() -> int:
            return await repository.count_recorded(connection, since, until, batch + 1)

        while until < horizon and await found() * 4 <= batch:
            until = min(since + (until - since) * 2, horizon)
        while until - since > _INSTANT and await found() > batch:
            until = since + (until - since) // 2
        if until < horizon:
            self._stretch = until - since
        return until

    async def _first_uncertified(
        self, connection: Connection, recorded: Sequence[Recorded], horizon: datetime
    ) -> datetime | None:
        """When the first event was recorded that has to wait for the certificate of a worker's key."""
        key_ids = {kept.key_id for one in recorded for kept in one.attested}
        missing = key_ids - await repository.select_certified(connection, key_ids)
        waits_since = horizon + self._pace.late - self._pace.certificate_late
        return min(
            (
                one.recorded_at
                for one in recorded
                if one.recorded_at > waits_since and any(kept.key_id in missing for kept in one.attested)
            ),
            default=None,
        )

    def _batch(self, read: _Read, now_s: int) -> _Batch:
        """Grade, salt, shuffle, hash and sign: takes seconds of a processor, and no database."""
        leaves = shuffled(read.recorded)
        end = LogEnd(read.end.size + len(leaves), read.until)
        if not leaves:
            return _Batch(end, (), {}, None)
        nodes = dict(merkle.grow(read.end.size, read.frontier, (one.leaf for one in leaves)))
        root = merkle.range_hash((0, end.size), {**read.frontier, **nodes})
        head = self._signed(end, root, max(now_s, read.last_at_s))
        return _Batch(end, leaves, nodes, head)

    async def _append(self, end: LogEnd, batch: _Batch) -> bool:
        """All of a batch, or nothing: False when the log does not end there any more."""
        async with self._database.transaction(SETTLER) as connection:
            if await repository.select_end(connection, lock=True) != end:
                return False
            if batch.head is not None:
                await repository.insert_leaves(connection, enumerate(batch.leaves, end.size))
                await repository.insert_nodes(connection, batch.nodes)
                await repository.insert_head(connection, batch.head)
            await repository.move_end(connection, batch.end)
        return True

    def _signed(self, end: LogEnd, root: bytes, at_s: int) -> StoredHead:
        head = TreeHead(end.size, root, self._signer.dated(at_s))
        return StoredHead(head, end.sealed_before, head.sign(self._signer.private))


async def _recorded(connection: Connection, since: datetime, until: datetime) -> list[Recorded]:
    events = await repository.select_recorded(connection, since, until)
    documents = await select_documents(connection, [event["request_id"] for event in events])

    def read() -> list[Recorded]:
        return [
            Recorded(event, tuple(filter(None, map(Kept.read, documents.get(event["request_id"], ())))))
            for event in events
        ]

    return await asyncio.to_thread(read)
