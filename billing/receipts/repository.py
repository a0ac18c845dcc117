"""Statements on attestations, and on what they attest."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.bulk import Bulk, Rows
from billing.db.tables import attestation, usage_event, usage_quarantine, worker_certificate
from billing.db.transaction import driver_of
from billing.receipts.receipt import Attested, Journaled, kind_of
from billing.usage import TokenUsage
from engine.proof import signed
from engine.proof.coverage import Attempt

Billed = tuple[TokenUsage | None, tuple[Attempt, ...]]

_CALL: Final = ("request_id", "attempt", "kind")
ATTESTATIONS: Final = Rows(attestation, (*_CALL, "tenant_id", "worker", "document"))
# Those whose call is not attested yet; the first one stays.
KEEP: Final = ATTESTATIONS.insert().on_conflict_do_nothing(index_elements=_CALL)
_KEEP: Final = Bulk(KEEP, ATTESTATIONS)
_call: Final = itemgetter(slice(len(_CALL)))
_DOCUMENTS: Final = """
    SELECT request_id, document FROM attestation WHERE request_id = ANY($1::uuid[])
    ORDER BY request_id, attempt, kind
"""
_BUCKETS: Final = ("cache_hit", "cache_owed", "cache_write", "cache_miss", "output")


def attestation_rows(documents: Iterable[tuple[UUID, str | None, Attested]]) -> list[tuple[Any, ...]]:
    """Documents, each with its request and tenant, as `KEEP` is given them.

    In the order of their calls: two writers of the same wait for each other and never deadlock.
    """
    rows = [
        (request_id, said.attempt, kind_of(said), tenant_id, said.worker, document.document)
        for request_id, tenant_id, document in documents
        for said in (document.attestation,)
    ]
    return sorted(rows, key=_call)


async def insert_attestations(
    connection: AsyncConnection, documents: Iterable[tuple[UUID, str | None, Attested]]
) -> None:
    """Keep documents whose call is not attested yet."""
    await _KEEP.run(connection, attestation_rows(documents))


async def insert_certificates(connection: AsyncConnection, documents: Iterable[Journaled]) -> None:
    """Keep the certificates of keys that have none yet; in the order of the keys, as with attestations."""
    by_key = {signed.key_id_in(one.document): one for one in documents}
    rows = [
        {"key_id": key_id, "worker": one.attestation.worker, "document": one.certificate}
        for key_id, one in sorted(by_key.items())
    ]
    if rows:
        await connection.execute(insert(worker_certificate).values(rows).on_conflict_do_nothing())


async def select_billed(connection: AsyncConnection, request_ids: Collection[UUID]) -> dict[UUID, Billed]:
    """The billed buckets and the accepted attempts, in their order, of the requests that have an event."""
    columns = (usage_event.c.request_id, usage_event.c.attempts, *(usage_event.c[name] for name in _BUCKETS))
    rows = await connection.execute(select(*columns).where(usage_event.c.request_id.in_(request_ids)))
    return {
        request_id: (TokenUsage(*buckets), tuple(Attempt(*fields) for fields in sorted(attempts)))
        for request_id, attempts, *buckets in rows
    }


async def select_documents(
    connection: AsyncConnection, request_ids: Collection[UUID]
) -> dict[UUID, list[str]]:
    """Signed documents, in the order of their calls."""
    found: defaultdict[UUID, list[str]] = defaultdict(list)
    for row in await driver_of(connection).fetch(_DOCUMENTS, list(request_ids)):
        found[row["request_id"]].append(row["document"])
    return found


async def select_settled_between(connection: AsyncConnection, first: UUID, end: UUID) -> list[UUID]:
    """Requests with an event whose id is in ``[first, end)``: ids are made of the instant of admission."""
    ids = usage_event.c.request_id
    return list((await connection.execute(select(ids).where(ids >= first, ids < end))).scalars())


async def select_unbilled_between(connection: AsyncConnection, first: UUID, end: UUID) -> list[UUID]:
    """Likewise, requests that a worker attests and that have no event and are not in quarantine; sorted."""
    attested = attestation.c.request_id
    has_event = select(usage_event.c.request_id).where(usage_event.c.request_id == attested).exists()
    is_aside = select(usage_quarantine.c.request_id).where(usage_quarantine.c.request_id == attested).exists()
    statement = select(attested).distinct().where(attested >= first, attested < end, ~has_event, ~is_aside)
    return list((await connection.execute(statement.order_by(attested))).scalars())
