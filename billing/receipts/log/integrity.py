"""The log computed again from its leaves, and compared with the events that it is the log of."""

from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from billing.db.access import OPERATOR_READ
from billing.db.transaction import Database
from billing.errors import ReceiptInvalid
from billing.receipts import merkle
from billing.receipts.document import ReceiptDocument
from billing.receipts.head import TreeHead
from billing.receipts.log import repository
from billing.receipts.log.head import StoredHead
from billing.receipts.log.leaf import Leaf
from billing.receipts.log.repository import Placed
from billing.receipts.merkle import Node
from billing.receipts.sealed import leaf_of
from billing.usage import TokenUsage
from engine.proof.ring import DeploymentRing
from engine.proof.signed import ProofInvalid

PAGE: Final = 1_000  # leaves or events of one reading
NODE_NAMES_MAX: Final = 10  # of a page; a forged node spoils all above it

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cuts:
    """Between which instants the events of a leaf were recorded, by the heads before and behind it."""

    heads: Sequence[StoredHead]

    def faults(self, index: int, recorded_at: datetime) -> Iterator[str]:
        """Whether a leaf stands where its event's instant of recording says."""
        behind = bisect_right(self.heads, index, key=lambda stored: stored.head.size)
        if behind == len(self.heads):
            yield f"leaf {index} is under no head"
        elif recorded_at >= self.heads[behind].cut:
            yield f"leaf {index} is of an event that was recorded behind the cut of its head"
        elif behind and recorded_at < self.heads[behind - 1].cut:
            yield f"leaf {index} is of an event that was recorded before the cut of the head before"


class Integrity:
    """One audit of the log.

    Args:
        ring: verifies the heads' signatures; None: they are not looked at.
    """

    def __init__(self, database: Database, ring: DeploymentRing | None) -> None:
        self._database = database
        self._ring = ring

    async def faults(self) -> AsyncIterator[str]:
        """Each as a sentence; what is sealed meanwhile is left to the next audit."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            end = await repository.select_end(connection)
            heads = await repository.select_heads(connection, -1, end.size + 1)
        heads = [stored for stored in heads if stored.head.size <= end.size]
        if end.size != (heads[-1].head.size if heads else 0):
            yield f"the log ends at {end.size}, and no head does"
        async for fault in self._unsealed(end.sealed_before):
            yield fault
        async for fault in self._leaves(end.size, Cuts(heads)):
            yield fault
        for stored in heads:
            async for fault in self._head(stored):
                yield fault

    async def _unsealed(self, before: datetime) -> AsyncIterator[str]:
        """Events that should have a leaf, and have none."""
        after = None
        while True:
            async with self._database.transaction(OPERATOR_READ) as connection:
                page = await repository.select_sealed(connection, after, PAGE)
            for request_id, recorded_at, sealed in page:
                if recorded_at < before and not sealed:
                    yield f"request {request_id} was recorded before the last cut and has no leaf"
            if len(page) < PAGE:
                return
            after = page[-1][0]

    async def _leaves(self, size: int, cuts: Cuts) -> AsyncIterator[str]:
        """Leaf by leaf in the order of the log, and the nodes over them; ends where a leaf is missing."""
        position, frontier = 0, dict[Node, bytes]()
        while position < size:
            until = min(position + PAGE, size)
            async with self._database.transaction(OPERATOR_READ) as connection:
                rows = await repository.select_with_events(connection, range(position, until))
                for (index, leaf), event in rows:
                    for fault in _leaf_faults((index, leaf), event, cuts):
                        yield fault
                missing = set(range(position, until)) - {index for (index, _), _ in rows}
                if missing:
                    yield f"leaf {min(missing)} is missing"
                    return
                nodes = dict(merkle.grow(position, frontier, (leaf.leaf for (_, leaf), _ in rows)))
                stored = await repository.select_nodes(connection, nodes)
            wrong = [node for node, hash_ in nodes.items() if stored.get(node) != hash_]
            for level, place in wrong[:NODE_NAMES_MAX]:
                yield f"node {place} of level {level} is not the hash over its leaves"
            known = frontier | nodes
            frontier = {node: known[node] for node in merkle.cover((0, until))}
            position = until

    async def _head(self, stored: StoredHead) -> AsyncIterator[str]:
        """Its root by the nodes, which have been computed again by now, and its signature."""
        size = stored.head.size
        async with self._database.transaction(OPERATOR_READ) as connection:
            hashes = await repository.select_nodes(connection, merkle.cover((0, size)))
        if (
            len(hashes) < len(merkle.cover((0, size)))
            or merkle.range_hash((0, size), hashes) != stored.head.root
        ):
            yield f"the head of size {size} has another root than its leaves"
        if self._ring is None:
            return
        try:
            if TreeHead.verify(stored.document, self._ring) != stored.head:
                yield f"the head of size {size} is signed otherwise than it is stored"
        except ProofInvalid as invalid:
            yield f"the head of size {size} is not signed by the deployment: {invalid}"


def _leaf_faults(placed: Placed, event: Event | None, cuts: Cuts) -> Iterator[str]:
    index, leaf = placed
    if event is None:
        yield f"leaf {index} is of request {leaf.request_id}, which has no event"
    else:
        yield from cuts.faults(index, event["recorded_at"])
    if leaf.receipt is None or leaf.nonce is None:
        return
    if leaf_of(leaf.nonce, leaf.receipt) != leaf.leaf:
        yield f"leaf {index} is not the hash of its receipt"
    try:
        receipt = ReceiptDocument.read(leaf.receipt)
    except ReceiptInvalid as invalid:
        yield f"leaf {index}: {invalid}"
        return
    if event is not None:
        differing = [name for name, own, theirs in _compared(leaf, receipt, event) if own != theirs]
        if differing:
            yield f"the receipt of leaf {index} differs from its event in {', '.join(differing)}"


def _compared(leaf: Leaf, receipt: ReceiptDocument, event: Event) -> Iterator[tuple[str, object, object]]:
    buckets = (event[name] for name in ("cache_hit", "cache_owed", "cache_write", "cache_miss", "output"))
    yield "request_id", receipt.request_id, leaf.request_id
    yield "tenant", (receipt.tenant_id, leaf.tenant_id), (event["tenant_id"],) * 2
    yield "rated_at", (receipt.rated_at, leaf.rated_at), (event["rated_at"],) * 2
    yield "usage", receipt.usage, TokenUsage(*buckets)
    yield "charge", (receipt.charge, receipt.currency), (event["charge"], event["currency"])
    yield "price_row", (receipt.price_row_id, receipt.window), (event["price_row_id"], event["price_window"])
