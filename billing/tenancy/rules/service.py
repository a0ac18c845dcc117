"""Limits and budgets: set, list, change, remove. Gateways apply them within the age of their grants."""

import secrets
from dataclasses import replace
from datetime import datetime
from typing import Any

from billing.audit import service as audit
from billing.audit.event import Deed, facts_of
from billing.db.access import reading, writing
from billing.db.pages import WHOLE, Page
from billing.db.transaction import Connection, Database
from billing.errors import KeyMissing, LimitMissing, ProjectMissing, StoreRefused, TenantMissing
from billing.money import Femto, decimal_of
from billing.tenancy import repository as tenants
from billing.tenancy.limits import Budget, Limit, Period
from billing.tenancy.rules import repository
from billing.tenancy.rules.rule import KeptBudget, KeptLimit, Owner


class Rules:
    """What tenants, projects and keys may use. Where ``tenant_id`` is given, others' are not there."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set_limit(self, owner: Owner, limit: Limit, at: datetime, *, actor: str) -> KeptLimit:
        """Put a limit in force, in place of one of the same owner, measure, model and ``per_user``.

        Raises:
            TenantMissing, ProjectMissing, KeyMissing: the owner is not there, or not the tenant's.
        """
        assert (limit.level, limit.owner_id) == (owner.level, owner.id), "the limit is another owner's"
        wanted = KeptLimit(f"lim_{secrets.token_hex(8)}", owner, at, limit)
        try:
            async with self._database.transaction(writing(owner.tenant_id)) as connection:
                before = await repository.select_same_limit(connection, wanted)
                after = await repository.upsert_limit(connection, wanted)
                await audit.append(connection, _limit_deed("limit.set", actor, at, before, after))
        except StoreRefused as refusal:
            raise _missing(owner, refusal) from refusal
        return after

    async def limits(self, tenant_id: str | None = None, page: Page = WHOLE) -> list[KeptLimit]:
        """Limits of one tenant and its projects and keys, or of all, oldest first."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await repository.select_limits(connection, tenant_id, page)

    async def limit(self, limit_id: str, tenant_id: str | None = None) -> KeptLimit:
        """One limit; raises LimitMissing."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await self._limit(connection, limit_id, tenant_id)

    async def remove_limit(
        self, limit_id: str, at: datetime, *, actor: str, tenant_id: str | None = None
    ) -> KeptLimit:
        """Allow everything again that this limit refused; raises LimitMissing."""
        async with self._database.transaction(writing(tenant_id)) as connection:
            before = await self._limit(connection, limit_id, tenant_id, lock=True)
            await repository.delete_limit(connection, limit_id)
            await audit.append(connection, _limit_deed("limit.remove", actor, at, before, None))
        return before

    async def create_budget(
        self, owner: Owner, amount: Femto, period: Period, at: datetime, *, hard: bool, actor: str
    ) -> KeptBudget:
        """Put a budget in force, beside others of the same owner.

        Raises:
            TenantMissing, ProjectMissing, KeyMissing: the owner is not there, or not the tenant's.
            LimitInvalid: a negative amount.
        """
        try:
            async with self._database.transaction(writing(owner.tenant_id)) as connection:
                tenant = await tenants.select_tenant(connection, owner.tenant_id)
                if tenant is None:
                    raise TenantMissing(owner.tenant_id)
                budget_id = f"bud_{secrets.token_hex(8)}"
                budget = Budget(budget_id, owner.level, owner.id, amount, period, tenant.tz, hard)
                made = KeptBudget(owner, at, budget)
                await repository.insert_budget(connection, made)
                await audit.append(connection, _budget_deed("budget.create", actor, at, None, made))
        except StoreRefused as refusal:
            raise _missing(owner, refusal) from refusal
        return made

    async def budgets(self, tenant_id: str | None = None, page: Page = WHOLE) -> list[KeptBudget]:
        """Budgets of one tenant and its projects and keys, or of all, oldest first."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await repository.select_budgets(connection, tenant_id, page)

    async def budget(self, budget_id: str, tenant_id: str | None = None) -> KeptBudget:
        """One budget; raises LimitMissing."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await self._budget(connection, budget_id, tenant_id)

    async def change_budget(
        self, changed: Budget, at: datetime, *, actor: str, tenant_id: str | None = None
    ) -> KeptBudget:
        """Give the budget of this id its amount and hardness; owner and period stay. Raises LimitMissing."""
        async with self._database.transaction(writing(tenant_id)) as connection:
            before = await self._budget(connection, changed.id, tenant_id, lock=True)
            after = replace(before, budget=replace(before.budget, amount=changed.amount, hard=changed.hard))
            await repository.update_budget(connection, after.budget)
            await audit.append(connection, _budget_deed("budget.set", actor, at, before, after))
        return after

    async def remove_budget(
        self, budget_id: str, at: datetime, *, actor: str, tenant_id: str | None = None
    ) -> KeptBudget:
        """Take a budget out of force; raises LimitMissing."""
        async with self._database.transaction(writing(tenant_id)) as connection:
            before = await self._budget(connection, budget_id, tenant_id, lock=True)
            await repository.delete_budget(connection, budget_id)
            await audit.append(connection, _budget_deed("budget.remove", actor, at, before, None))
        return before

    @staticmethod
    async def _limit(
        connection: Connection, limit_id: str, tenant_id: str | None, *, lock: bool = False
    ) -> KeptLimit:
        found = await repository.select_limit(connection, limit_id, tenant_id, lock=lock)
        if found is None:
            raise LimitMissing(limit_id)
        return found

    @staticmethod
    async def _budget(
        connection: Connection, budget_id: str, tenant_id: str | None, *, lock: bool = False
    ) -> KeptBudget:
        found = await repository.select_budget(connection, budget_id, tenant_id, lock=lock)
        if found is None:
            raise LimitMissing(budget_id)
        return found


def _missing(owner: Owner, refusal: StoreRefused) -> Exception:
    """What a broken foreign key means: the owner is not there, or is another tenant's."""
    constraint = refusal.constraint or ""
    if constraint.endswith("_project_id_tenant_id"):
        return ProjectMissing(owner.id)
    if constraint.endswith("_key_id_tenant_id"):
        return KeyMissing(owner.id)
    return TenantMissing(owner.id) if constraint.endswith("_tenant_id") else refusal


def _limit_deed(
    action: str, actor: str, at: datetime, before: KeptLimit | None, after: KeptLimit | None
) -> Deed:
    kept = before or after
    assert kept is not None
    was, now = (None if one is None else facts_of(one) for one in (before, after))
    return Deed(kept.owner.tenant_id, actor, action, kept.id, at, was, now)


def _budget_deed(
    action: str, actor: str, at: datetime, before: KeptBudget | None, after: KeptBudget | None
) -> Deed:
    kept = before or after
    assert kept is not None
    was, now = (None if one is None else _budget_facts(one) for one in (before, after))
    return Deed(kept.owner.tenant_id, actor, action, kept.id, at, was, now)


def _budget_facts(kept: KeptBudget) -> dict[str, Any]:
    facts = facts_of(kept)
    facts["budget"]["amount"] = decimal_of(kept.budget.amount)
    return facts
