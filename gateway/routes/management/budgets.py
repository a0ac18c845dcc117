"""Budgets of the key's organisation: what it, a project or a key may spend in a period."""

from dataclasses import replace
from datetime import datetime
from typing import Final, Literal

import msgspec
from litestar import delete, get, patch, post
from litestar.params import FromPath, JSONBody
from msgspec import UNSET, UnsetType

from billing.money import decimal_of, femto_of
from billing.tenancy.limits import Level, Period
from billing.tenancy.rules.rule import KeptBudget
from gateway.desk import AnyRequest
from gateway.routes.management import edge
from gateway.routes.management.edge import After, Deleted, Listed, RowsMax
from gateway.routes.management.limits import owner_of


class BudgetShown(msgspec.Struct):
    """``amount`` is an exact decimal in ``currency``; a period begins at midnight in the time zone ``tz``."""

    id: str
    level: Level
    owner_id: str
    amount: str
    currency: str
    period: Period
    tz: str
    hard: bool
    created_at: datetime
    object: Literal["organization.budget"] = "organization.budget"


class NewBudget(msgspec.Struct, forbid_unknown_fields=True):
    """For a project, for a key, or for all of the organisation where neither is named.

    ``amount`` is a decimal text such as ``"12.50"``. A hard budget refuses what might pass it, a soft one
    alerts when it is passed.
    """

    amount: str
    period: Period
    project_id: str | None = None
    key_id: str | None = None
    hard: bool = True


class BudgetPatch(msgspec.Struct, forbid_unknown_fields=True):
    """What is to change."""

    amount: str | UnsetType = UNSET
    hard: bool | UnsetType = UNSET


@get("/budgets")
async def list_budgets(
    request: AnyRequest, after: After = None, limit: RowsMax = edge.ROWS_DEFAULT
) -> Listed[BudgetShown]:
    """List budgets of the organisation, its projects and its keys."""
    by = edge.manager(request)
    rows = await edge.organization(request).rules.budgets(by.tenant_id, edge.one_more(after, limit))
    return edge.listed(rows, limit, lambda kept: _shown(kept, by.currency))


@post("/budgets")
async def create_budget(request: AnyRequest, data: JSONBody[NewBudget]) -> BudgetShown:
    """Put a budget in force, beside others of the same owner."""
    by = edge.manager(request)
    owner = owner_of(by.tenant_id, data.project_id, data.key_id)
    amount = femto_of(data.amount)
    at = await edge.now(request)
    made = await edge.organization(request).rules.create_budget(
        owner, amount, data.period, at, hard=data.hard, actor=by.key_id
    )
    await edge.tell(request, owner.id)
    return _shown(made, by.currency)


@get("/budgets/{budget_id:str}")
async def show_budget(request: AnyRequest, budget_id: FromPath[str]) -> BudgetShown:
    """Show a budget."""
    by = edge.manager(request)
    return _shown(await edge.organization(request).rules.budget(budget_id, by.tenant_id), by.currency)


@patch("/budgets/{budget_id:str}")
async def change_budget(
    request: AnyRequest, budget_id: FromPath[str], data: JSONBody[BudgetPatch]
) -> BudgetShown:
    """Change a budget's amount, or whether it refuses. What was spent in its period stays counted."""
    by, rules = edge.manager(request), edge.organization(request).rules
    budget = (await rules.budget(budget_id, by.tenant_id)).budget
    wanted = replace(
        budget,
        amount=budget.amount if data.amount is UNSET else femto_of(data.amount),
        hard=budget.hard if data.hard is UNSET else data.hard,
    )
    at = await edge.now(request)
    kept = await rules.change_budget(wanted, at, actor=by.key_id, tenant_id=by.tenant_id)
    await edge.tell(request, kept.owner.id)
    return _shown(kept, by.currency)


@delete("/budgets/{budget_id:str}", status_code=200)
async def remove_budget(request: AnyRequest, budget_id: FromPath[str]) -> Deleted:
    """Take a budget out of force."""
    by = edge.manager(request)
    at = await edge.now(request)
    gone = await edge.organization(request).rules.remove_budget(
        budget_id, at, actor=by.key_id, tenant_id=by.tenant_id
    )
    await edge.tell(request, gone.owner.id)
    return Deleted(gone.id, "organization.budget")


def _shown(kept: KeptBudget, currency: str) -> BudgetShown:
    budget = kept.budget
    return BudgetShown(
        id=kept.id,
        level=budget.level,
        owner_id=budget.owner_id,
        amount=decimal_of(budget.amount),
        currency=currency,
        period=budget.period,
        tz=budget.tz,
        hard=budget.hard,
        created_at=kept.created_at,
    )


HANDLERS: Final = [list_budgets, create_budget, show_budget, change_budget, remove_budget]
