"""Usage, as rows."""

from billing.db.transaction import Database
from billing.reports import repository
from billing.reports.usage_row import OwedRow, QuarantinedRow, UsageFilter, UsageRow


class Reports:
    """Reads only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def usage(self, usage_filter: UsageFilter) -> list[UsageRow]:
        """Usage events, newest last by the instant that rated them."""
        async with self._database.transaction() as connection:
            return await repository.select_usage(connection, usage_filter)

    async def quarantined(self, usage_filter: UsageFilter) -> list[QuarantinedRow]:
        """Requests whose usage cannot be, newest last by the instant at which that was recorded."""
        async with self._database.transaction() as connection:
            return await repository.select_quarantined(connection, usage_filter)

    async def owed(self) -> list[OwedRow]:
        """What broken promises have cost so far, by tenant."""
        async with self._database.transaction() as connection:
            return await repository.select_owed(connection)
