"""Usage, as rows."""

from billing.db.transaction import Database
from billing.reports import repository
from billing.reports.usage_row import OwedRow, UsageFilter, UsageRow, Use, UseFilter


class Reports:
    """Reads only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def usage(self, usage_filter: UsageFilter) -> list[UsageRow]:
        """Usage events, newest last by the instant that rated them."""
        async with self._database.transaction() as connection:
            return await repository.select_usage(connection, usage_filter)

    async def use(self, use_filter: UseFilter) -> Use:
        """What requests came to, for budgets and limits that have to be read from the books."""
        async with self._database.transaction() as connection:
            return await repository.select_use(connection, use_filter)

    async def owed(self) -> list[OwedRow]:
        """What broken promises have cost so far, by tenant."""
        async with self._database.transaction() as connection:
            return await repository.select_owed(connection)
