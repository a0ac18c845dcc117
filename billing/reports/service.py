"""Usage, as rows."""

from billing.db.access import OPERATOR_READ, of_tenant
from billing.db.transaction import Database
from billing.reports import repository
from billing.reports.usage_row import OwedRow, UsageFilter, UsageRow


class Reports:
    """Reads only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def usage(self, usage_filter: UsageFilter) -> list[UsageRow]:
        """Usage events, newest last by the instant that rated them."""
        tenant_id = usage_filter.tenant_id
        access = OPERATOR_READ if tenant_id is None else of_tenant(tenant_id)
        async with self._database.transaction(access) as connection:
            return await repository.select_usage(connection, usage_filter)

    async def owed(self) -> list[OwedRow]:
        """What broken promises have cost so far, by tenant."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_owed(connection)
