"""Valkey from Postgres: its numbers are projections, read when they are missing or somebody asks."""

from datetime import timedelta
from typing import Final

from billing.ledger.balance import BalanceVersion
from billing.ledger.service import Ledger
from billing.reports.service import Reports
from billing.reports.usage_row import UseFilter
from billing.tenancy.periods import period_at
from gateway.admission.admit import Admission
from gateway.refusal import ProjectionMissing

DAY: Final = timedelta(days=1)
# A reading may be older than a charge that is settled meanwhile; then it is read again.
READINGS_MAX: Final = 3


class Projections:
    """Reads what a tenant has left, spent and used, and shows it to the next admission.

    Every method raises ValkeyUnavailable or StoreUnavailable when one of the two does not answer.
    """

    def __init__(self, admission: Admission, ledger: Ledger, reports: Reports) -> None:
        self._admission = admission
        self._ledger = ledger
        self._reports = reports

    async def project(self, tenant_id: str, missing: ProjectionMissing) -> None:
        """Read and show what an admission missed; periods and days are those of its instant."""
        if missing.balance:
            balance = await self._ledger.balance(tenant_id)
            await self._admission.project(BalanceVersion(tenant_id, balance.spendable, balance.version))
        for budget in missing.budgets:
            period = period_at(budget, missing.at)
            scope = UseFilter(tenant_id, budget.level, budget.owner_id, period.start, period.until)
            for _ in range(READINGS_MAX):
                use = await self._reports.use(scope)
                if await self._admission.project_budget(tenant_id, budget, use, missing.at):
                    break
        for day in missing.days:
            # A bucket over its last day is at most as full as what was used in it: never too empty.
            limit = day.limit
            since, until = missing.at - DAY, missing.at + DAY
            scope = UseFilter(tenant_id, limit.level, limit.owner_id, since, until, limit.model)
            await self._admission.project_day(tenant_id, day, (await self._reports.use(scope)).tokens)

    async def rebuild(self, tenant_id: str) -> tuple[BalanceVersion, int]:
        """Forget what Valkey says, then show the ledger's balance; holds stand.

        In this order nothing older can come in between. Budgets and days are read when they are asked for.

        Returns:
            The balance, and how many budgets and days were forgotten.

        Raises:
            TenantMissing: no tenant has this id.
        """
        forgotten = await self._admission.forget(tenant_id)
        balance = await self._ledger.balance(tenant_id)
        version = BalanceVersion(tenant_id, balance.spendable, balance.version)
        await self._admission.project(version)
        return version, forgotten
