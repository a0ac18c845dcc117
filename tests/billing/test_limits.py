"""Limits and budgets: which bound a key, how they are set, and that they travel with its grant."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from billing.errors import KeyMissing, LimitInvalid, LimitMissing, ProjectMissing, TenantMissing
from billing.money import Femto
from billing.tenancy.limits import AMOUNT_MAX, Limit, Measure
from billing.tenancy.projects.service import Projects
from billing.tenancy.rules.rule import Owner
from billing.tenancy.rules.service import Rules
from tests.billing.conftest import NOON


@dataclass(frozen=True)
class Bounded:
    """A tenant with two projects of a key each."""

    rules: Rules
    tenant: Owner
    project: Owner
    key: Owner
    secret: str
    other_secret: str


@pytest.fixture
async def bounded(house: Any) -> Bounded:
    project = await Projects(house.database).create(house.tenant_id, "search", NOON, actor="test")
    one = await house.tenancy.create_key(house.tenant_id, "one", NOON, project=project.id)
    other = await house.tenancy.create_key(house.tenant_id, "other", NOON)
    return Bounded(
        Rules(house.database),
        Owner(house.tenant_id),
        Owner(house.tenant_id, project_id=project.id),
        Owner(house.tenant_id, key_id=one.key.id),
        one.secret,
        other.secret,
    )


def limit(owner: Owner, amount: int, measure: Measure = "requests_per_minute", **more: Any) -> Limit:
    return Limit(owner.level, owner.id, measure, amount, **more)


async def test_a_grant_has_the_limits_of_key_project_and_tenant_and_nobody_elses(
    house: Any, bounded: Bounded
) -> None:
    set_ = [limit(owner, 10) for owner in (bounded.tenant, bounded.project, bounded.key)]
    for owner, one in zip((bounded.tenant, bounded.project, bounded.key), set_, strict=True):
        await bounded.rules.set_limit(owner, one, NOON, actor="test")
    grant = await house.tenancy.find_key(house.tenancy.digest(bounded.secret))
    assert sorted(grant.limits, key=lambda one: one.level) == sorted(set_, key=lambda one: one.level)
    other = await house.tenancy.find_key(house.tenancy.digest(bounded.other_secret))
    assert other.limits == (set_[0],)
    stranger = await house.other_tenant()
    issued = await house.tenancy.create_key(stranger.tenant_id, "k", NOON)
    assert (await house.tenancy.find_key(house.tenancy.digest(issued.secret))).limits == ()


async def test_a_limit_is_replaced_by_one_of_the_same_measure_model_and_user(bounded: Bounded) -> None:
    first = await bounded.rules.set_limit(bounded.key, limit(bounded.key, 10), NOON, actor="test")
    again = await bounded.rules.set_limit(bounded.key, limit(bounded.key, 0), NOON, actor="test")
    assert (again.id, again.limit.amount) == (first.id, 0)
    for more in ({"model": "m"}, {"per_user": True}, {"model": "m", "per_user": True}):
        kept = await bounded.rules.set_limit(bounded.key, limit(bounded.key, 5, **more), NOON, actor="test")
        assert kept.id != first.id
    assert len(await bounded.rules.limits(bounded.tenant.tenant_id)) == 4


async def test_all_of_a_limit_is_kept(house: Any, bounded: Bounded) -> None:
    whole = limit(
        bounded.project, AMOUNT_MAX, "input_tokens_per_minute", model="m", per_user=True, cached_free=True
    )
    kept = await bounded.rules.set_limit(bounded.project, whole, NOON, actor="test")
    assert await bounded.rules.limit(kept.id) == kept
    assert (await house.tenancy.find_key(house.tenancy.digest(bounded.secret))).limits == (whole,)
    await bounded.rules.remove_limit(kept.id, NOON, actor="test")
    assert (await house.tenancy.find_key(house.tenancy.digest(bounded.secret))).limits == ()


async def test_several_budgets_hold_at_once_to_the_femto(house: Any, bounded: Bounded) -> None:
    await house.tenancy.change_tenant(house.tenant_id, NOON, tz="Asia/Kolkata")
    huge = Femto(10**30 + 1)
    for owner, amount, hard in (
        (bounded.tenant, huge, True), (bounded.tenant, Femto(1), False), (bounded.key, Femto(0), True),
    ):  # fmt: skip
        await bounded.rules.create_budget(owner, amount, "monthly", NOON, hard=hard, actor="test")
    grant = await house.tenancy.find_key(house.tenancy.digest(bounded.secret))
    told = {(one.level, one.owner_id, one.amount, one.hard, one.tz, one.period) for one in grant.budgets}
    assert told == {
        ("tenant", house.tenant_id, huge, True, "Asia/Kolkata", "monthly"),
        ("tenant", house.tenant_id, 1, False, "Asia/Kolkata", "monthly"),
        ("key", bounded.key.id, 0, True, "Asia/Kolkata", "monthly"),
    }
    kept = await bounded.rules.budgets(house.tenant_id)
    assert {one.budget for one in kept} == set(grant.budgets)


async def test_a_budget_changes_its_amount_and_goes(bounded: Bounded) -> None:
    made = await bounded.rules.create_budget(bounded.key, Femto(10), "daily", NOON, hard=True, actor="test")
    wanted = replace(made.budget, amount=Femto(20), hard=False)
    assert (await bounded.rules.change_budget(wanted, NOON, actor="test")).budget == wanted
    await bounded.rules.remove_budget(made.id, NOON, actor="test")
    with pytest.raises(LimitMissing):
        await bounded.rules.budget(made.id)


async def test_a_limit_needs_an_owner_of_its_own_tenant(house: Any, bounded: Bounded) -> None:
    other = await house.other_tenant()
    wrong = (
        (Owner("ten_nobody"), TenantMissing),
        (Owner(other.tenant_id, project_id=bounded.project.id), ProjectMissing),
        (Owner(other.tenant_id, key_id=bounded.key.id), KeyMissing),
    )
    for owner, error in wrong:
        with pytest.raises(error):
            await bounded.rules.set_limit(owner, limit(owner, 1), NOON, actor="test")
        with pytest.raises(error):
            await bounded.rules.create_budget(owner, Femto(1), "daily", NOON, hard=True, actor="test")


async def test_limits_of_another_tenant_are_not_there(bounded: Bounded) -> None:
    kept = await bounded.rules.set_limit(bounded.key, limit(bounded.key, 1), NOON, actor="test")
    budget = await bounded.rules.create_budget(bounded.key, Femto(1), "daily", NOON, hard=True, actor="test")
    calls = (
        bounded.rules.limit(kept.id, "ten_other"),
        bounded.rules.remove_limit(kept.id, NOON, actor="test", tenant_id="ten_other"),
        bounded.rules.budget(budget.id, "ten_other"),
        bounded.rules.change_budget(budget.budget, NOON, actor="test", tenant_id="ten_other"),
        bounded.rules.remove_budget(budget.id, NOON, actor="test", tenant_id="ten_other"),
    )
    for call in calls:
        with pytest.raises(LimitMissing):
            await call


@pytest.mark.parametrize("amount", [-1, AMOUNT_MAX + 1])
def test_a_limit_that_cannot_be_counted_is_refused(amount: int) -> None:
    with pytest.raises(LimitInvalid):
        limit(Owner("ten_a"), amount)
