"""Receipts: what workers attest is kept beside what was billed, in any order, and the two are compared."""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from billing.db.access import SETTLER
from billing.db.transaction import Connection, Database
from billing.errors import StoreRefused
from billing.receipts import repository
from billing.receipts.memo import Memo
from billing.receipts.receipt import Journaled, Kept, Receipt
from billing.request_id import RANDOM_BYTES, mint

BATCH: Final = 1_000  # requests of one reading; Postgres takes 32,767 parameters

_FIRST: Final = bytes(RANDOM_BYTES)
_NOT_BILLED: Final[repository.Billed] = (None, ())
_SelectIds = Callable[[Connection, UUID, UUID], Awaitable[list[UUID]]]

_log: Final = logging.getLogger(__name__)


class Receipts:
    """Attestations of all requests, settled or not. What was billed is settlement's to write."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, documents: Sequence[Journaled]) -> None:
        """Keep verified attestations with their certificates, durably when this returns.

        Of one call and kind the first one stays, and of one worker's key the first certificate.

        What cannot be kept at all is logged and dropped: a journal must come to its end.

        Raises:
            StoreUnavailable: it is not known what was kept; the same again is safe.
        """
        named = [
            (request_id, _tenant_id(one), one)
            for one in documents
            if (request_id := _request_id(one)) is not None
        ]
        await self._keep(named)

    async def of(self, request_ids: Collection[UUID]) -> dict[UUID, Receipt]:
        """What is known of each request, whether it has an event or not.

        Raises:
            StoreUnavailable: Postgres cannot be asked.
        """
        if not request_ids:
            return {}
        async with self._database.transaction(SETTLER) as connection:
            billed = await repository.select_billed(connection, request_ids)
            documents = await repository.select_documents(connection, request_ids)
        return {
            request_id: Receipt.of(
                request_id,
                *billed.get(request_id, _NOT_BILLED),
                tuple(
                    kept.attestation
                    for text in documents.get(request_id, ())
                    if (kept := Kept.read(text)) is not None
                ),
            )
            for request_id in request_ids
        }

    async def admitted_between(self, since: datetime, until: datetime) -> list[Receipt]:
        """Receipts of the settled requests that were admitted in ``[since, until)``, whole milliseconds.

        Raises:
            StoreUnavailable: Postgres cannot be asked.
        """
        return await self._between(repository.select_settled_between, since, until)

    async def unbilled_between(self, since: datetime, until: datetime) -> list[Receipt]:
        """Likewise, of the requests that workers attest and the books do not have.

        Some rightly cost nothing, when their gateway never learned of what was computed. None is forgotten.
        """
        return await self._between(repository.select_unbilled_between, since, until)

    async def _between(self, select_ids: _SelectIds, since: datetime, until: datetime) -> list[Receipt]:
        async with self._database.transaction(SETTLER) as connection:
            request_ids = await select_ids(connection, mint(since, _FIRST), mint(until, _FIRST))
        found: list[Receipt] = []
        for start in range(0, len(request_ids), BATCH):
            found += (await self.of(request_ids[start : start + BATCH])).values()
        return found

    async def _keep(self, documents: list[tuple[UUID, str | None, Journaled]]) -> None:
        try:
            async with self._database.transaction(SETTLER) as connection:
                await repository.insert_attestations(connection, documents)
                await repository.insert_certificates(connection, [one for *_, one in documents])
        except StoreRefused as refusal:
            if len(documents) > 1:
                for one in documents:
                    await self._keep([one])
                return
            _log.error("attestation refused", extra={"request_id": str(documents[0][0]), "why": str(refusal)})


def _request_id(document: Journaled) -> UUID | None:
    try:
        return UUID(document.attestation.request_id)
    except ValueError:
        _log.error("attestation of no request", extra={"worker": document.attestation.worker})
        return None


def _tenant_id(document: Journaled) -> str | None:
    memo = Memo.read(document.attestation.memo)
    return None if memo is None else memo.tenant_id
