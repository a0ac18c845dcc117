"""Statements on the receipt log."""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.bulk import Bulk, Rows
from billing.db.tables import receipt_leaf, tree_head, tree_node
from billing.db.transaction import driver_of
from billing.money import Femto
from billing.receipts.head import TreeHead
from billing.receipts.log.head import LogEnd, StoredHead
from billing.receipts.log.leaf import Leaf
from billing.receipts.merkle import HASH_BYTES, Node

Placed = tuple[int, Leaf]

_LEAF: Final = ("request_id", "tenant_id", "rated_at", "leaf", "nonce", "receipt")
LEAVES: Final = Rows(receipt_leaf, ("leaf_index", *_LEAF))
NODES: Final = Rows(tree_node, ("level", "position", "hash"))
_INSERT_LEAVES: Final = Bulk(LEAVES.insert(), LEAVES)
_INSERT_NODES: Final = Bulk(NODES.insert(), NODES)

_END: Final = "SELECT size, sealed_before FROM log_state"
_COUNT: Final = """
    SELECT count(*) FROM (
        SELECT 1 FROM usage_event WHERE recorded_at >= $1 AND recorded_at < $2 LIMIT $3
    ) AS found
"""
_EVENTS: Final = """
    SELECT request_id, tenant_id, key_id, model, status, traffic_class, admitted_at, rated_at,
        cache_hit, cache_owed, cache_write, cache_miss, output, reasoning,
        charge::text, currency, price_row_id, price_window, tier, attempts::text, recorded_at
    FROM usage_event
"""
_RECORDED: Final = f"{_EVENTS} WHERE recorded_at >= $1 AND recorded_at < $2"
_OF_REQUESTS: Final = f"{_EVENTS} WHERE request_id = ANY($1::uuid[])"
_SEALED: Final = """
    SELECT request_id, recorded_at, leaf_index IS NOT NULL AS sealed
    FROM usage_event LEFT JOIN receipt_leaf USING (request_id)
    WHERE request_id > coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
    ORDER BY request_id LIMIT $2
"""
_KEYS: Final = "SELECT key_id FROM worker_certificate WHERE key_id = ANY($1::text[])"
_CERTIFICATES: Final = "SELECT document FROM worker_certificate ORDER BY recorded_at, key_id"
# Arrays as text and one answer for all: asyncpg would look at each value, and make an object of each row.
_NODES: Final = """
    SELECT string_agg(coalesce(hash, $3), ''::bytea ORDER BY number)
    FROM unnest($1::text::smallint[], $2::text::bigint[]) WITH ORDINALITY AS wanted (level, position, number)
    LEFT JOIN tree_node USING (level, position)
"""
_NO_HASH: Final = bytes(HASH_BYTES)
_HEADS: Final = "SELECT size, root, at, cut, document FROM tree_head"
_LEAVES: Final = f"SELECT leaf_index, {', '.join(_LEAF)} FROM receipt_leaf"  # noqa: S608  names of columns
_LEAF_AND_HEAD: Final = f"""
    SELECT leaf_index, {", ".join(_LEAF)}, head.*
    FROM receipt_leaf LEFT JOIN LATERAL ({_HEADS}
        WHERE size = coalesce($3, size) ORDER BY size DESC LIMIT 1
    ) AS head ON true
    WHERE request_id = $1 AND tenant_id = coalesce($2, tenant_id)
"""  # noqa: S608  likewise
_OF_TENANT: Final = f"""{_LEAVES}
    WHERE tenant_id = $1 AND leaf_index >= $2 AND leaf_index < $3 AND receipt IS NOT NULL
    ORDER BY leaf_index LIMIT $4
"""
_HAS_EVENT: Final = "SELECT 1 FROM usage_event WHERE request_id = $1 AND tenant_id = coalesce($2, tenant_id)"
_HIDDEN_BY: Final = """
    SELECT nonce_secret FROM tenant JOIN usage_event ON tenant_id = id
    WHERE request_id = $1 AND tenant_id = $2 AND key_id = coalesce($3, key_id)
"""
_ERASE: Final = """
    UPDATE receipt_leaf SET nonce = NULL, receipt = NULL WHERE tenant_id = $1 AND receipt IS NOT NULL
"""


async def select_end(connection: AsyncConnection, *, lock: bool = False) -> LogEnd:
    """Where the log ends; locked, nobody else appends before this transaction ends."""
    locked = " FOR UPDATE" if lock else ""
    return LogEnd(*await driver_of(connection).fetchrow(_END + locked))


async def move_end(connection: AsyncConnection, to: LogEnd) -> None:
    """It is locked."""
    statement = text("UPDATE log_state SET size = :size, sealed_before = :before")
    await connection.execute(statement, {"size": to.size, "before": to.sealed_before})


async def count_recorded(connection: AsyncConnection, since: datetime, until: datetime, at_most: int) -> int:
    """How many events were recorded in ``[since, until)``, or ``at_most``."""
    found: int = await driver_of(connection).fetchval(_COUNT, since, until, at_most)
    return found


async def select_recorded(
    connection: AsyncConnection, since: datetime, until: datetime
) -> list[Mapping[str, Any]]:
    """The events that were recorded in ``[since, until)``, in no order."""
    return list(map(_event, await driver_of(connection).fetch(_RECORDED, since, until)))


async def select_certified(connection: AsyncConnection, key_ids: Collection[str]) -> set[str]:
    """Which of the keys have their certificate here."""
    return {row["key_id"] for row in await driver_of(connection).fetch(_KEYS, list(key_ids))}


async def select_certificates(connection: AsyncConnection) -> list[str]:
    """All, as they were signed."""
    return [row["document"] for row in await driver_of(connection).fetch(_CERTIFICATES)]


async def select_nodes(connection: AsyncConnection, nodes: Collection[Node]) -> dict[Node, bytes]:
    """The hashes of those that are there."""
    if not nodes:
        return {}
    levels, positions = ("{" + ",".join(map(str, column)) + "}" for column in zip(*nodes, strict=True))
    found: bytes = await driver_of(connection).fetchval(_NODES, levels, positions, _NO_HASH)
    hashes = (found[place : place + HASH_BYTES] for place in range(0, len(found), HASH_BYTES))
    return {node: hash_ for node, hash_ in zip(nodes, hashes, strict=True) if hash_ != _NO_HASH}


async def insert_leaves(connection: AsyncConnection, leaves: Iterable[Placed]) -> None:
    """Each with its index; the request of none has a leaf yet."""
    rows = (
        (
            index,
            *(one.request_id, one.tenant_id, one.rated_at, one.leaf, one.nonce),
            None if one.receipt is None else one.receipt.decode(),
        )
        for index, one in leaves
    )
    await _INSERT_LEAVES.run(connection, rows)


async def insert_nodes(connection: AsyncConnection, nodes: Mapping[Node, bytes]) -> None:
    """They are new."""
    await _INSERT_NODES.run(connection, ((*node, hash_) for node, hash_ in nodes.items()))


async def insert_head(connection: AsyncConnection, stored: StoredHead) -> None:
    """Unless there is one of its size, which then stays."""
    head = stored.head
    values = {
        "size": head.size,
        "root": head.root,
        "at": datetime.fromtimestamp(head.at_s, UTC),
        "cut": stored.cut,
        "document": stored.document,
    }
    await connection.execute(insert(tree_head).values(values).on_conflict_do_nothing())


async def select_newest_head(connection: AsyncConnection) -> StoredHead | None:
    """The one of the largest size."""
    row = await driver_of(connection).fetchrow(f"{_HEADS} ORDER BY size DESC LIMIT 1")
    return None if row is None else _head(row)


async def select_head(connection: AsyncConnection, size: int) -> StoredHead | None:
    """The one of this size."""
    row = await driver_of(connection).fetchrow(f"{_HEADS} WHERE size = $1", size)
    return None if row is None else _head(row)


async def select_heads(connection: AsyncConnection, after: int, heads_max: int) -> list[StoredHead]:
    """Those of more than ``after`` leaves, the smallest first."""
    statement = f"{_HEADS} WHERE size > $1 ORDER BY size LIMIT $2"
    return [_head(row) for row in await driver_of(connection).fetch(statement, after, heads_max)]


async def select_leaf(
    connection: AsyncConnection, request_id: UUID, tenant_id: str | None, size: int | None
) -> tuple[Placed | None, StoredHead | None]:
    """That of a request, of this tenant where one is named; and the head of a size, or the newest one.

    Both in one question, as proofs are asked for one by one. Without a leaf no head is looked for.
    """
    row = await driver_of(connection).fetchrow(_LEAF_AND_HEAD, request_id, tenant_id, size)
    if row is None:
        return None, None
    return _placed(row), None if row["size"] is None else _head(row)


async def select_leaves(
    connection: AsyncConnection, tenant_id: str, indexes: range, leaves_max: int
) -> list[Placed]:
    """The tenant's first ones in a stretch of the log; those that are erased are left out."""
    rows = await driver_of(connection).fetch(_OF_TENANT, tenant_id, indexes.start, indexes.stop, leaves_max)
    return list(map(_placed, rows))


async def select_with_events(
    connection: AsyncConnection, indexes: range
) -> list[tuple[Placed, Mapping[str, Any] | None]]:
    """All leaves in a stretch of the log, in order, each with its event; None where it has none."""
    statement = f"{_LEAVES} WHERE leaf_index >= $1 AND leaf_index < $2 ORDER BY leaf_index"
    driver = driver_of(connection)
    placed = list(map(_placed, await driver.fetch(statement, indexes.start, indexes.stop)))
    request_ids = [leaf.request_id for _, leaf in placed]
    events = {row["request_id"]: _event(row) for row in await driver.fetch(_OF_REQUESTS, request_ids)}
    return [(one, events.get(one[1].request_id)) for one in placed]


async def select_sealed(
    connection: AsyncConnection, after: UUID | None, events_max: int
) -> list[tuple[UUID, datetime, bool]]:
    """Events behind a request, by their ids: each with when it was recorded and whether it has a leaf."""
    rows = await driver_of(connection).fetch(_SEALED, after, events_max)
    return [tuple(row) for row in rows]


async def has_event(connection: AsyncConnection, request_id: UUID, tenant_id: str | None) -> bool:
    """Whether the request is settled, and of this tenant where one is named."""
    return await driver_of(connection).fetchval(_HAS_EVENT, request_id, tenant_id) is not None


async def select_nonce_secret(
    connection: AsyncConnection, request_id: UUID, tenant_id: str, key_id: str | None
) -> bytes | None:
    """The secret of a tenant which has made this request, with this key where one is named."""
    found: bytes | None = await driver_of(connection).fetchval(_HIDDEN_BY, request_id, tenant_id, key_id)
    return found


async def erase_leaves(connection: AsyncConnection, tenant_id: str) -> int:
    """Forget what the tenant's leaves were made of; returns how many there were."""
    status: str = await driver_of(connection).execute(_ERASE, tenant_id)
    return int(status.rpartition(" ")[2])


def _event(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**row, "charge": Femto(int(row["charge"])), "attempts": msgspec.json.decode(row["attempts"])}


def _head(row: Mapping[str, Any]) -> StoredHead:
    head = TreeHead(row["size"], row["root"], int(row["at"].timestamp()))
    return StoredHead(head, row["cut"], row["document"])


def _placed(row: Mapping[str, Any]) -> Placed:
    index, request_id, tenant_id, rated_at, leaf, nonce, receipt, *_ = row.values()
    erased = receipt is None
    return index, Leaf(request_id, tenant_id, rated_at, leaf, nonce, None if erased else receipt.encode())
