"""Usage, as rows."""

from billing.db.access import OPERATOR_READ, Access, of_tenant
from billing.db.transaction import Database
from billing.errors import ReportInvalid
from billing.reports import repository
from billing.reports.usage_row import OwedRow, QuarantinedRow, UsageFilter, UsageRow, Use, UseFilter
from billing.reports.usage_total import UsageQuestion, UsageTotal


class Reports:
    """Reads only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def usage(self, usage_filter: UsageFilter) -> list[UsageRow]:
        """Usage events, newest last by the instant that rated them."""
        async with self._database.transaction(_access(usage_filter.tenant_id)) as connection:
            return await repository.select_usage(connection, usage_filter)

    async def use(self, use_filter: UseFilter) -> Use:
        """What requests came to, for budgets and limits that have to be read from the books."""
        async with self._database.transaction(_access(use_filter.tenant_id)) as connection:
            return await repository.select_use(connection, use_filter)

    async def totals(self, question: UsageQuestion) -> list[UsageTotal]:
        """Usage added up by any dimensions: from rollups where slots are whole, else from events.

        Every column of every grouping adds up to the sum over the events of the interval.

        Raises:
            ReportInvalid: there are more groups than were asked for at most.
        """
        async with self._database.transaction(_access(question.tenant_id)) as connection:
            totals = await repository.select_totals(connection, question)
        if question.groups_max is not None and len(totals) > question.groups_max:
            raise ReportInvalid(
                "limit", f"more than {question.groups_max} rows: ask for less at once, or have an export made"
            )
        return totals

    async def quarantined(self, usage_filter: UsageFilter) -> list[QuarantinedRow]:
        """Requests whose usage cannot be, newest last by the instant at which that was recorded.

        Told to operators: what workers signed of one may name no tenant, or another.
        """
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_quarantined(connection, usage_filter)

    async def owed(self) -> list[OwedRow]:
        """What broken promises have cost so far, by tenant."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_owed(connection)


def _access(tenant_id: str | None) -> Access:
    return OPERATOR_READ if tenant_id is None else of_tenant(tenant_id)
