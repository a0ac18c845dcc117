"""Budgets: their periods, what they refuse, and that what is spent is Postgres' word, projected."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from billing.ledger.balance import BalanceVersion
from billing.money import Femto
from billing.reports.usage_row import Use
from billing.tenancy.limits import Budget
from billing.tenancy.periods import period_at
from gateway.admission.admit import Admission
from gateway.admission.hold import Hold, Spent
from gateway.admission.limits import Demand
from gateway.refusal import BudgetHeld, BudgetReached, ProjectionMissing
from gateway.valkey import Valkey
from tests.gateway.limiting import RICH, TENANT, budget, rich

SHANGHAI = "Asia/Shanghai"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("period", "tz", "at", "start", "until"),
    [
        ("daily", "UTC", "2026-11-02T00:00", "2026-11-02", "2026-11-03"),
        ("daily", "UTC", "2026-11-01T23:59:59.999999", "2026-11-01", "2026-11-02"),
        ("daily", SHANGHAI, "2026-11-01T16:00", "2026-11-01T16:00", "2026-11-02T16:00"),
        ("daily", "Asia/Kathmandu", "2026-11-01T18:14:59", "2026-10-31T18:15", "2026-11-01T18:15"),
        ("daily", "Europe/Stockholm", "2026-10-25T12:00", "2026-10-24T22:00", "2026-10-25T23:00"),
        ("daily", "America/Santiago", "2026-09-06T12:00", "2026-09-06T04:00", "2026-09-07T03:00"),
        ("weekly", "UTC", "2026-11-01T12:00", "2026-10-26", "2026-11-02"),
        ("weekly", SHANGHAI, "2026-11-01T16:00", "2026-11-01T16:00", "2026-11-08T16:00"),
        ("monthly", "UTC", "2026-02-28T23:59", "2026-02-01", "2026-03-01"),
        ("monthly", "Europe/Stockholm", "2026-12-31T23:30", "2026-12-31T23:00", "2027-01-31T23:00"),
        ("lifetime", SHANGHAI, "2026-11-01T16:00", "1970-01-01", "2200-01-01"),
    ],
)
def test_periods_begin_at_midnight_in_the_tenants_zone(
    period: Any, tz: str, at: str, start: str, until: str
) -> None:
    """BerriAI/litellm#34896: zones are converted, not dropped; also where clocks skip midnight."""
    span = period_at(budget(1, period=period, tz=tz), utc(at))
    assert (span.start, span.until) == (utc(start), utc(until))


@pytest.fixture
async def admission(valkey: Valkey) -> Admission:
    return await rich(Admission(valkey))


async def now(valkey: Valkey) -> datetime:
    seconds, _ = await valkey.call("TIME")
    return datetime.fromtimestamp(int(seconds), UTC)


async def admitted(admission: Admission, amount: int, *of: Budget) -> Hold:
    """Admit, as if Postgres had nothing spent at version 1 whenever it is asked."""
    try:
        return await admission.admit(TENANT, Femto(amount), Demand(1, 1, (), of))
    except ProjectionMissing as missing:
        for one in missing.budgets:
            await admission.project_budget(TENANT, one, Use(Femto(0), 0, 1), missing.at)
    return await admission.admit(TENANT, Femto(amount), Demand(1, 1, (), of))


async def charged(admission: Admission, hold: Hold, charge: int, version: int) -> None:
    spent = Spent(Femto(charge), hold.admitted_at, 1, 0, 1)
    await admission.release(hold, BalanceVersion(TENANT, RICH, version), spent)


async def test_a_hard_budget_bears_holds_up_to_its_amount_and_not_one_more(admission: Admission) -> None:
    of = budget(10**15 + 7)
    hold = await admitted(admission, 10**15, of)
    with pytest.raises(BudgetHeld) as held:
        await admitted(admission, 8, of)
    assert 0 < held.value.retry_after_s <= 60
    await admitted(admission, 7, of)
    with pytest.raises(BudgetReached):
        await admitted(admission, 10**15 + 8, of)
    await charged(admission, hold, 5 * 10**14, 2)
    await admitted(admission, 5 * 10**14, of)


async def test_of_several_budgets_each_can_refuse_and_none_is_taken_then(admission: Admission) -> None:
    wide, narrow = budget(100), budget(10, id="bud_b", period="daily")
    with pytest.raises(BudgetReached) as refused:
        await admitted(admission, 11, wide, narrow)
    assert refused.value.budget == narrow
    await admitted(admission, 100, wide)


async def test_zero_allows_nothing_that_costs(admission: Admission) -> None:
    with pytest.raises(BudgetReached):
        await admitted(admission, 1, budget(0))


async def test_a_soft_budget_lets_pass_and_alerts_once_a_period(admission: Admission) -> None:
    of = budget(10, hard=False)
    assert (await admitted(admission, 10, of)).strained == ()
    first, second = [await admitted(admission, 1, of) for _ in range(2)]
    assert (first.strained, first.alerts) == ((of.id,), (of.id,))
    assert (second.strained, second.alerts) == ((of.id,), ())


async def test_a_period_that_is_over_is_read_again_and_holds_of_before_still_count(
    admission: Admission, valkey: Valkey
) -> None:
    of, today = budget(10, period="daily"), await now(valkey)
    yesterday = today - timedelta(days=1)
    assert await admission.project_budget(TENANT, of, Use(Femto(10), 0, 1), yesterday)
    with pytest.raises(ProjectionMissing) as missing:
        await admission.admit(TENANT, Femto(1), Demand(1, 1, (), (of,)))
    assert missing.value.budgets == (of,)
    assert abs(missing.value.at - today) < timedelta(minutes=1)  # Valkey's TIME, nobody else's
    hold = await admitted(admission, 10, of)
    assert await admission.project_budget(TENANT, of, Use(Femto(0), 0, 1), today)
    with pytest.raises(BudgetHeld):
        await admitted(admission, 1, of)
    await admission.void(hold)


async def test_a_charge_counts_in_the_period_that_rates_it(admission: Admission) -> None:
    of = budget(10, period="daily")
    hold = await admitted(admission, 10, of)
    tomorrow = Spent(Femto(10), hold.admitted_at + timedelta(days=1), 1, 0, 1)
    await admission.release(hold, BalanceVersion(TENANT, RICH, 2), tomorrow)
    await admitted(admission, 10, of)


async def test_a_charge_that_a_reading_has_counted_is_not_added_to_it(admission: Admission) -> None:
    of = budget(10)
    first, second = [await admitted(admission, 3, of) for _ in range(2)]
    await admission.forget(TENANT)
    await rich(admission)
    assert await admission.project_budget(
        TENANT, of, Use(Femto(3), 2, 2), first.admitted_at
    )  # with the first
    await charged(admission, first, 3, 2)
    await charged(admission, second, 3, 3)
    assert (await admitted(admission, 4, of)).strained == ()
    with pytest.raises(BudgetHeld):
        await admitted(admission, 1, of)


async def test_a_reading_older_than_a_charge_that_came_meanwhile_is_refused(admission: Admission) -> None:
    of = budget(10)
    hold = await admitted(admission, 3, of)
    await admission.forget(TENANT)
    await rich(admission)
    await charged(admission, hold, 3, 5)
    assert not await admission.project_budget(TENANT, of, Use(Femto(0), 0, 4), hold.admitted_at)
    assert await admission.project_budget(TENANT, of, Use(Femto(3), 0, 6), hold.admitted_at)
    assert not await admission.project_budget(TENANT, of, Use(Femto(3), 0, 5), hold.admitted_at)


@pytest.mark.parametrize("wiped", [False, True])
async def test_what_nobody_can_tell_is_read_again(admission: Admission, valkey: Valkey, wiped: bool) -> None:
    """A sweeper that does not know the charge, and a gateway whose hold a wipe has taken."""
    of = budget(10)
    hold = await admitted(admission, 3, of)
    if wiped:
        await valkey.call("FLUSHALL")
        await rich(admission)
        assert await admission.project_budget(TENANT, of, Use(Femto(0), 0, 1), hold.admitted_at)
        await charged(admission, hold, 3, 2)
    else:
        await admission.release_id(TENANT, hold.request_id, BalanceVersion(TENANT, RICH, 2))
    with pytest.raises(ProjectionMissing):
        await admission.admit(TENANT, Femto(1), Demand(1, 1, (), (of,)))


async def test_a_budget_of_another_zone_is_another_one(admission: Admission) -> None:
    of = budget(10, period="daily")
    await admitted(admission, 1, of)
    with pytest.raises(ProjectionMissing):
        await admission.admit(TENANT, Femto(1), Demand(1, 1, (), (replace(of, tz=SHANGHAI),)))


async def test_a_budgets_key_goes_by_itself(admission: Admission, valkey: Valkey) -> None:
    hold = await admitted(admission, 3, budget(10))
    await charged(admission, hold, 3, 2)
    (key,) = await valkey.call("KEYS", "*budget:*")
    assert 0 < await valkey.call("PTTL", key) <= 86_400_000
