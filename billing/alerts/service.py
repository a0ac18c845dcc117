"""Looking at the books for what tenants are to know. Looking twice, or dying between, tells nothing twice."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from billing.alerts import repository
from billing.alerts.watched import AHEAD, BalanceAlert, ExpiringKey, price_notices, upcoming
from billing.audit import service as audit
from billing.audit.event import Deed
from billing.db.access import OPERATOR_READ, OWNER, SETTLER, of_tenant, writing
from billing.db.horizon import select_horizon
from billing.db.pages import WHOLE
from billing.db.transaction import Connection, Database
from billing.errors import StoreRefused, TenantMissing
from billing.interval import Interval
from billing.ledger import repository as ledger
from billing.money import Femto, decimal_of
from billing.notify.kind import Kind
from billing.notify.notice import Notice, instant_text
from billing.notify.service import emit
from billing.pricing.repository import select_book
from billing.reports import repository as reports
from billing.reports.rollup import LAG
from billing.tenancy.rules.repository import select_budgets

HOUR: Final = timedelta(hours=1)
BATCH: Final = 200  # notices of one transaction
LOOK_BACK: Final = timedelta(hours=1)  # prices may take effect ten seconds after they are published


class Alerts:
    """Each ``look_…`` returns how many notices it told.

    Args:
        lag: how far behind the present events count as all recorded (`billing.reports.rollup`).
    """

    def __init__(self, database: Database, lag: timedelta = LAG) -> None:
        self._database = database
        self._lag = lag
        # What is so now and has been told: it need not be tried again every minute that it stays so.
        self._told: dict[Kind, set[tuple[str, str | None]]] = {}

    async def set_balance_alert(
        self, tenant_id: str, threshold: Femto | None, at: datetime, *, actor: str
    ) -> None:
        """Have a balance below ``threshold`` told, also one that is below already; None: have none told.

        Raises:
            TenantMissing: no tenant has this id.
        """
        try:
            async with self._database.transaction(writing(tenant_id)) as connection:
                before = await repository.select_balance_alert(connection, tenant_id)
                if threshold is None:
                    await repository.delete_balance_alert(connection, tenant_id)
                else:
                    await repository.upsert_balance_alert(connection, tenant_id, threshold)
                was, now = (_facts(None if before is None else before.threshold), _facts(threshold))
                await audit.append(
                    connection, Deed(tenant_id, actor, "alert.balance", tenant_id, at, was, now)
                )
        except StoreRefused as refusal:
            if refusal.constraint == "fk_balance_alert_tenant_id":
                raise TenantMissing(tenant_id) from refusal
            raise

    async def balance_alert(self, tenant_id: str) -> BalanceAlert | None:
        """A tenant's; None: it has none."""
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            return await repository.select_balance_alert(connection, tenant_id)

    async def look_at_balances(self, at: datetime) -> int:
        """Tell of balances that have fallen below their threshold."""
        async with self._database.transaction(SETTLER) as connection:
            alerts = {alert.tenant_id: alert for alert in await repository.lock_balance_alerts(connection)}
            currencies = await repository.select_currencies(connection)
            told = 0
            for present in await ledger.select_versions(connection, alerts.keys()):
                before = alerts[present.tenant_id]
                after = before.seen(present.balance)
                if after != before:
                    await repository.update_balance_alert(connection, after)
                if after.occasions > before.occasions:
                    notice = after.notice(present.balance, currencies[present.tenant_id], at)
                    told += await _told(connection, notice)
        return told

    async def look_at_budgets(self, at: datetime) -> int:
        """Tell of budgets of which four fifths, or all, is spent: each once a period, by the books."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            budgets = await select_budgets(connection, None, WHOLE)
            currencies = await repository.select_currencies(connection)
            spent = await repository.select_spending(connection, budgets, at)
        reached = [
            spending.notice(currencies[spending.kept.owner.tenant_id], at)
            for spending in spent
            if spending.kept.owner.tenant_id in currencies
        ]
        return await self._tell("budget.reached", reached)

    async def look_at_keys(self, at: datetime) -> int:
        """Tell of keys that end within a week, and again within a day."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            ending = await repository.select_expiring(connection, at, at + max(AHEAD))
        return await self._tell("key.expiring", [ExpiringKey(*row).notice(at) for row in ending])

    async def look_at_prices(self, at: datetime) -> int:
        """Tell each tenant of published rows that will change what it pays, with rates before and after."""
        since = at - LOOK_BACK
        async with self._database.transaction(OPERATOR_READ) as connection:
            book = await select_book(connection)
            currencies = await repository.select_currencies(connection)
        if not upcoming(book, since):
            return 0
        changing = [
            notice
            for tenant_id, currency in currencies.items()
            for notice in price_notices(book, tenant_id, currency, since, at)
        ]
        return await self._tell("price.changing", changing)

    async def look_at_promises(self, at: datetime) -> int:
        """Tell what was billed as owed, by tenant and hour, once nothing more is recorded in that hour."""
        async with self._database.transaction(OWNER) as connection:
            horizon = await select_horizon(connection, self._lag)
        told, going_on = 0, True
        while going_on:
            async with self._database.transaction(SETTLER) as connection:
                since = await repository.lock_promise_watermark(connection)
                going_on = since + HOUR <= horizon
                if going_on:
                    hour = Interval(since, since + HOUR)
                    for owed in await reports.select_owed(connection, hour):
                        facts = {
                            "since": instant_text(hour.since),
                            "until": instant_text(hour.until),
                            "owed_tokens": owed.tokens,
                            "saved": decimal_of(owed.cost),
                            "currency": owed.currency,
                        }
                        occasion = f"promise.broken/{instant_text(hour.since)}"
                        notice = Notice(owed.tenant_id, "promise.broken", at, facts, occasion)
                        told += await _told(connection, notice)
                    await repository.move_promise_watermark(connection, hour.until)
        return told

    async def _tell(self, kind: Kind, found: Iterable[Notice | None]) -> int:
        """Tell all that is so now of a kind; a batch a transaction, in the order of tenants."""
        notices = sorted(
            (notice for notice in found if notice is not None),
            key=lambda notice: (notice.tenant_id, notice.dedupe or ""),
        )
        known, told = self._told.get(kind, set()), 0
        fresh = [notice for notice in notices if (notice.tenant_id, notice.dedupe) not in known]
        for first in range(0, len(fresh), BATCH):
            async with self._database.transaction(SETTLER) as connection:
                told += sum([await _told(connection, notice) for notice in fresh[first : first + BATCH]])
        self._told[kind] = {(notice.tenant_id, notice.dedupe) for notice in notices}
        return told


async def _told(connection: Connection, notice: Notice) -> bool:
    return await emit(connection, notice) is not None


def _facts(threshold: Femto | None) -> dict[str, Any] | None:
    return None if threshold is None else {"threshold": decimal_of(threshold)}
