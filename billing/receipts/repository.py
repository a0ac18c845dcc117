"""Statements on attempts and attestations."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final
from uuid import UUID

from sqlalchemy import exists, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.bulk import arrays, unnested
from billing.db.tables import attestation, usage_attempt, usage_event
from billing.receipts.memo import Memo
from billing.receipts.receipt import Attested, kind_of
from billing.usage import TokenUsage
from engine.proof.coverage import Attempt

_CALL: Final = ("request_id", "attempt", "kind")
_ATTESTATION: Final = (*_CALL, "tenant_id", "worker", "document")
_ATTEMPT: Final = tuple(column.name for column in usage_attempt.c)
_BUCKETS: Final = ("cache_hit", "cache_owed", "cache_write", "cache_miss", "output")


async def insert_attestations(
    connection: AsyncConnection, documents: Iterable[tuple[UUID, Attested]]
) -> None:
    """Keep documents whose call is not attested yet; the first one stays.

    In the order of their calls: two writers of the same wait for each other and never deadlock.
    """
    rows: dict[tuple[UUID, int, str], Mapping[str, object]] = {}
    for request_id, document in documents:
        said = document.attestation
        memo = Memo.read(said.memo)
        call = (request_id, said.attempt, kind_of(said))
        row = (*call, None if memo is None else memo.tenant_id, said.worker, document.document)
        rows.setdefault(call, dict(zip(_ATTESTATION, row, strict=True)))
    if not rows:
        return
    statement = (
        upsert(attestation)
        .from_select(_ATTESTATION, select(unnested(attestation, _ATTESTATION)))
        .on_conflict_do_nothing(index_elements=_CALL)
    )
    await connection.execute(statement, arrays([rows[call] for call in sorted(rows)], _ATTESTATION))


async def insert_attempts(connection: AsyncConnection, accepted: Iterable[tuple[UUID, str, Attempt]]) -> None:
    """Keep the attempts of new events: request id, tenant and attempt of each."""
    rows = [
        {
            "request_id": request_id,
            "attempt": attempt.attempt,
            "tenant_id": tenant_id,
            "stage": attempt.stage,
            "worker": attempt.worker,
            "output_from": attempt.output_from,
            "output_to": attempt.output_to,
        }
        for request_id, tenant_id, attempt in accepted
    ]
    if rows:
        statement = insert(usage_attempt).from_select(_ATTEMPT, select(unnested(usage_attempt, _ATTEMPT)))
        await connection.execute(statement, arrays(rows, _ATTEMPT))


async def select_usage(connection: AsyncConnection, request_ids: Collection[UUID]) -> dict[UUID, TokenUsage]:
    """The billed buckets of the requests that have an event."""
    columns = (usage_event.c.request_id, *(usage_event.c[name] for name in _BUCKETS))
    rows = await connection.execute(select(*columns).where(usage_event.c.request_id.in_(request_ids)))
    return {request_id: TokenUsage(*buckets) for request_id, *buckets in rows}


async def select_attempts(
    connection: AsyncConnection, request_ids: Collection[UUID]
) -> dict[UUID, list[Attempt]]:
    """Accepted attempts, in their order."""
    c = usage_attempt.c
    statement = (
        select(c.request_id, c.attempt, c.stage, c.worker, c.output_from, c.output_to)
        .where(c.request_id.in_(request_ids))
        .order_by(c.request_id, c.attempt)
    )
    found: defaultdict[UUID, list[Attempt]] = defaultdict(list)
    for request_id, *fields in await connection.execute(statement):
        found[request_id].append(Attempt(*fields))
    return found


async def select_documents(
    connection: AsyncConnection, request_ids: Collection[UUID]
) -> dict[UUID, list[str]]:
    """Signed documents, in the order of their calls."""
    c = attestation.c
    statement = select(c.request_id, c.document).where(c.request_id.in_(request_ids))
    found: defaultdict[UUID, list[str]] = defaultdict(list)
    for request_id, document in await connection.execute(statement.order_by(c.request_id, c.attempt, c.kind)):
        found[request_id].append(document)
    return found


async def select_unsettled_between(connection: AsyncConnection, first: UUID, end: UUID) -> list[UUID]:
    """Requests whose id is in ``[first, end)`` that workers attest and that have no event, oldest first."""
    ids = attestation.c.request_id
    settled = exists().where(usage_event.c.request_id == ids)
    statement = select(ids).distinct().where(ids >= first, ids < end, ~settled).order_by(ids)
    return list((await connection.execute(statement)).scalars())


async def select_settled_between(connection: AsyncConnection, first: UUID, end: UUID) -> list[UUID]:
    """Requests with an event whose id is in ``[first, end)``: ids are made of the instant of admission."""
    ids = usage_event.c.request_id
    return list((await connection.execute(select(ids).where(ids >= first, ids < end))).scalars())
