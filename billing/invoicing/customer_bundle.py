"""The bundle that a customer keeps: all that verifies its receipts and its documents without us."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from billing.db.access import of_tenant
from billing.db.transaction import Database
from billing.invoicing import repository
from billing.pricing.book import PriceBook
from billing.pricing.document import placement_text, row_text
from billing.pricing.service import Prices
from billing.receipts.bundle import Consistency, Contents, InvoiceFile, write_directory, write_zip
from billing.receipts.log.service import ReceiptLog
from billing.receipts.sealed import SealedReceipt
from engine.proof.ring import RingSigner


@dataclass(frozen=True, slots=True)
class Written:
    """How much a bundle holds."""

    receipts: int
    documents: int


class CustomerBundles:
    """Writes bundles; reads page by page."""

    def __init__(self, database: Database, log: ReceiptLog, signer: RingSigner) -> None:
        self._database = database
        self._log = log
        self._signer = signer

    async def write(self, tenant_id: str, path: Path, at: datetime) -> Written:
        """Write a new folder, or a zip where the name ends so.

        Raises:
            HeadMissing: nothing was ever sealed.
            OSError: something is there already, or the disk refuses.
        """
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            documents = await repository.select_invoices(connection, tenant_id)
        newest = await self._log.newest()
        sizes = {one.document.log.closes_at for one in documents if one.document.log is not None}
        sizes |= {newest.head.size} if newest is not None else set()
        heads = [await self._log.head(size) for size in sorted(sizes)]
        proofs = [
            Consistency(
                one.head.size, two.head.size, await self._log.consistency(one.head.size, two.head.size)
            )
            for one, two in pairwise(heads)
        ]
        book = _seen_by(await Prices(self._database).book(), tenant_id)
        receipts = _Counted(self._log.receipts(tenant_id), asyncio.get_running_loop())
        contents = Contents(
            keys=self._signer.ring.to_text(),
            certificates=await self._log.certificates(),
            heads=[head.document for head in heads],
            consistency=proofs,
            prices=[row_text(row) for row in book.rows],
            placements=[placement_text(each) for each in book.placements],
            receipts=receipts,
            invoices=[InvoiceFile(one.number, one.text) for one in documents],
        )
        await asyncio.to_thread(self._write, path, contents, self._signer.dated(int(at.timestamp())))
        return Written(receipts.count, len(documents))

    def _write(self, path: Path, contents: Contents, at_s: int) -> None:
        if path.suffix == ".zip":
            with path.open("xb") as file:
                write_zip(file, contents, self._signer.private, at_s)
        else:
            write_directory(path, contents, self._signer.private, at_s)


class _Counted:
    """Receipts that a loop reads, for a thread that writes them."""

    def __init__(self, receipts: AsyncIterator[SealedReceipt], loop: asyncio.AbstractEventLoop) -> None:
        self._receipts = receipts
        self._loop = loop
        self.count = 0

    def __iter__(self) -> Iterator[SealedReceipt]:
        while (one := asyncio.run_coroutine_threadsafe(self._next(), self._loop).result()) is not None:
            self.count += 1
            yield one

    async def _next(self) -> SealedReceipt | None:
        return await anext(self._receipts, None)


def _seen_by(book: PriceBook, tenant_id: str) -> PriceBook:
    """The rows of all lists that have ever priced for a tenant, and its placements."""
    placements = tuple(each for each in book.placements if each.tenant_id == tenant_id)
    plans = {each.plan for each in placements}
    rows = (
        row
        for row in book.rows
        if row.tenant_id in {None, tenant_id} and (row.plan is None or row.plan in plans)
    )
    return PriceBook(tuple(rows), placements)
