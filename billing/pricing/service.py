"""The published price book."""

from datetime import datetime, timedelta
from typing import Final

from billing.db.access import OPERATOR_READ
from billing.db.transaction import Database
from billing.errors import PriceConflict
from billing.pricing import repository
from billing.pricing.book import PriceBook

LEAD: Final = timedelta(seconds=10)  # gateways read the book anew every two seconds


class Prices:
    """Append-only: a row, once published, rates its time for ever."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(self, book: PriceBook, actor: str, at: datetime) -> int:
        """Add the rows of ``book`` that are not published yet; all or none.

        Returns:
            How many were added. Rows published already, and the same, count as nothing.

        Raises:
            PriceConflict: a row differs from the published one of its instant; or takes effect sooner than
                10 s after ``at`` for a model with prices in this currency: gateways may be rating by them.
        """
        async with self._database.transaction() as connection:
            await repository.lock(connection)
            published = {row.id: row for row in await repository.select_rows(connection)}
            priced = {(row.model, row.currency) for row in published.values()}
            fresh = [row for row in book.rows if row.id not in published]
            for row in book.rows:
                if published.get(row.id, row) != row:
                    raise PriceConflict(
                        row.id, "is published with other prices, and published rows never change"
                    )
            for row in fresh:
                if (row.model, row.currency) in priced and row.effective_from < at + LEAD:
                    raise PriceConflict(row.id, "takes effect before every gateway has seen it")
                await repository.insert_row(connection, row, actor, at)
        return len(fresh)

    async def book(self) -> PriceBook:
        """All published rows."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return PriceBook(await repository.select_rows(connection))
