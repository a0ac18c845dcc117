"""The receipt log as others see it: sealed, proved, read, and audited."""

from collections.abc import AsyncIterator, Collection, Sequence
from datetime import datetime
from itertools import chain
from typing import Final
from uuid import UUID

from billing.db.access import OPERATOR_READ, of_tenant, reading
from billing.db.transaction import Connection, Database
from billing.errors import HeadMissing, ReceiptMissing, ReceiptPending
from billing.receipts import merkle
from billing.receipts.log import repository
from billing.receipts.log.head import StoredHead
from billing.receipts.log.integrity import Integrity
from billing.receipts.log.leaf import Leaf
from billing.receipts.log.sequencer import Pace, Sequencer
from billing.receipts.merkle import Range
from billing.receipts.sealed import SealedReceipt
from engine.proof.attestation import prompt_nonce
from engine.proof.ring import DeploymentRing, RingSigner

PAGE: Final = 1_000  # leaves of one reading


class ReceiptLog:
    """Every settled request has one leaf, an hour or so after its event; a request without an event has none.

    Proofs are made for signed heads alone. All methods raise StoreUnavailable.

    Args:
        signer: signs heads; None: this one only reads.
        pace: when receipts are sealed; None: as usual.
    """

    def __init__(
        self, database: Database, signer: RingSigner | None = None, pace: Pace | None = None
    ) -> None:
        self._database = database
        self._sequencer = None if signer is None else Sequencer(database, signer, pace or Pace())

    async def seal(self, now: datetime) -> StoredHead | None:
        """Append the receipts of all events whose time has come; the last head made, None: nothing was new.

        Any number may run at once. What an interrupted one has sealed stays; the same again is safe.
        """
        assert self._sequencer is not None, "who seals signs"
        return await self._sequencer.seal(now)

    async def close(self, now: datetime) -> StoredHead:
        """Seal all that can be; the newest head then, at which a period can close."""
        assert self._sequencer is not None, "who seals signs"
        await self._sequencer.seal(now)
        newest = await self.newest()
        if newest is None:
            await self._sequencer.begin(now)
            newest = await self.newest()
        assert newest is not None, "a log that has begun has a head"
        return newest

    async def newest(self) -> StoredHead | None:
        """The head of the largest size; None: nothing has ever been sealed."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_newest_head(connection)

    async def head(self, size: int) -> StoredHead:
        """The head of this size; raises HeadMissing."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await _head(connection, size)

    async def heads(self, after: int = -1, heads_max: int = 1_000) -> list[StoredHead]:
        """Heads of more than ``after`` leaves, the smallest first."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_heads(connection, after, heads_max)

    async def inclusion(
        self, request_id: UUID, tenant_id: str | None = None, *, size: int | None = None
    ) -> tuple[SealedReceipt, StoredHead]:
        """A receipt with the proof that it is in the log.

        Args:
            request_id: whose.
            tenant_id: to whom other tenants' receipts are not there; None: to nobody's.
            size: of the head that it is proved by; None: the newest.

        Raises:
            ReceiptMissing: there is none, or it is erased.
            ReceiptPending: its request is settled; it will be sealed.
            HeadMissing: there is no such head, or it is older than the receipt.
        """
        async with self._database.transaction(reading(tenant_id)) as connection:
            placed, head = await repository.select_leaf(connection, request_id, tenant_id, size)
            if placed is None and await repository.has_event(connection, request_id, tenant_id):
                raise ReceiptPending(str(request_id))
            if placed is None or placed[1].receipt is None:
                raise ReceiptMissing(str(request_id))
            if head is None or placed[0] >= head.head.size:
                raise HeadMissing(size or 0)
            (sealed,) = await _proved(connection, [placed], head.head.size)
        return sealed, head

    async def consistency(self, first: int, second: int) -> tuple[bytes, ...]:
        """The proof that the tree of one head begins with that of another, or with none.

        Raises:
            HeadMissing: there is no head of one of these sizes, or the first is the larger one.
        """
        async with self._database.transaction(OPERATOR_READ) as connection:
            for size in (first, second):
                if size:
                    await _head(connection, size)
            if first > second:
                raise HeadMissing(second)
            return await _hashes(connection, merkle.consistency_ranges(first, second) if first else ())

    async def receipts(
        self, tenant_id: str, from_index: int = 0, to_index: int | None = None, *, size: int | None = None
    ) -> AsyncIterator[SealedReceipt]:
        """A tenant's receipts with ``from_index <= leaf_index < to_index``, in the order of the log.

        Read page by page, never in one long transaction. Those that are erased are left out.

        Args:
            tenant_id: whose.
            from_index: the first.
            to_index: behind the last; None: all that the head has.
            size: of the head that they are proved by; None: the newest.

        Raises:
            HeadMissing: there is no such head.
        """
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            size = (await _head(connection, size)).head.size
        indexes = range(from_index, size if to_index is None else min(to_index, size))
        while indexes:
            async with self._database.transaction(of_tenant(tenant_id)) as connection:
                placed = await repository.select_leaves(connection, tenant_id, indexes, PAGE)
                page = await _proved(connection, placed, size)
            for sealed in page:
                yield sealed
            indexes = range(page[-1].leaf_index + 1, indexes.stop) if len(page) == PAGE else range(0)

    async def certificates(self) -> list[str]:
        """Certificates of all workers' keys, as the deployment signed them."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_certificates(connection)

    async def prompt_nonce(self, request_id: UUID, tenant_id: str, key_id: str | None = None) -> bytes:
        """What opens the commitments to a request's prompt. It never goes anywhere but to who asks here.

        Args:
            request_id: which.
            tenant_id: whose it must be.
            key_id: the key that asks, which must have made it; None: a developer of the tenant does.

        Raises:
            ReceiptMissing: no such request of theirs, or the tenant is erased.
        """
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            secret = await repository.select_nonce_secret(connection, request_id, tenant_id, key_id)
        if secret is None:
            raise ReceiptMissing(str(request_id))
        return prompt_nonce(secret, request_id)

    async def check_integrity(self, ring: DeploymentRing | None = None) -> list[str]:
        """Compute the log again from its leaves; every fault found, none is what it should be.

        Args:
            ring: verifies the heads' signatures; None: they are not looked at.
        """
        return [fault async for fault in Integrity(self._database, ring).faults()]


async def erase(connection: Connection, tenant_id: str) -> int:
    """Forget a tenant's receipts, in the operator's transaction; their leaves stay, and prove the others.

    Returns how many they were.
    """
    return await repository.erase_leaves(connection, tenant_id)


async def _head(connection: Connection, size: int | None) -> StoredHead:
    """Of this size, or the newest."""
    if size is None:
        found = await repository.select_newest_head(connection)
    else:
        found = await repository.select_head(connection, size)
    if found is None:
        raise HeadMissing(size or 0)
    return found


async def _proved(
    connection: Connection, placed: Sequence[tuple[int, Leaf]], size: int
) -> list[SealedReceipt]:
    """Leaves that are not erased, in the order of their indexes, each with its path."""
    ranges_of = list(merkle.inclusion_ranges_of([index for index, _ in placed], size)) if placed else []
    # In the order of the leaves: Postgres then finds most nodes beside the one before.
    distinct = dict.fromkeys(chain.from_iterable(ranges_of))
    hashes = dict(zip(distinct, await _hashes(connection, distinct), strict=True))
    sealed = []
    for (index, leaf), ranges in zip(placed, ranges_of, strict=True):
        assert leaf.nonce is not None
        assert leaf.receipt is not None
        path = tuple(map(hashes.__getitem__, ranges))
        sealed.append(SealedReceipt(index, leaf.nonce, size, path, leaf.receipt))
    return sealed


async def _hashes(connection: Connection, ranges: Collection[Range]) -> tuple[bytes, ...]:
    """Of each range, from its nodes."""
    covers = list(map(merkle.cover, ranges))
    hashes = await repository.select_nodes(connection, list(chain.from_iterable(covers)))
    return tuple(merkle.covered_hash([hashes[node] for node in cover]) for cover in covers)
