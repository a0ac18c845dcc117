"""What the books say that tenants are to know: each once its occasion, whoever looks and how often."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from billing.alerts.service import Alerts
from billing.alerts.watched import BalanceAlert, ExpiringKey
from billing.audit.service import Audit
from billing.db.access import OWNER
from billing.errors import TenantMissing
from billing.ledger.credit import Correction
from billing.money import Femto, femto_of
from billing.notify.notice import Notice
from billing.notify.service import Notices
from billing.pricing.book import Placement, PriceBook
from billing.pricing.rating import rate
from billing.reports.rollup import Rollups
from billing.settlement.posting import post
from billing.tenancy.api_key import KeyTerms
from billing.tenancy.rules.rule import Owner
from billing.tenancy.rules.service import Rules
from billing.usage import TokenUsage
from tests.billing.conftest import CHARGE, MODEL, NOON

DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
UNIT = femto_of("1")


@pytest.fixture
def alerts(house: Any) -> Alerts:
    return Alerts(house.database, lag=timedelta(0))


async def told(house: Any, kind: str) -> list[Notice]:
    every = await Notices(house.database).notices(house.tenant_id)
    of_kind = [kept.notice for kept in every if kept.notice.kind == kind]
    return sorted(of_kind, key=lambda notice: (notice.at, notice.facts.get("since", ""), str(notice.dedupe)))


async def spend(house: Any, amount: str) -> None:
    await house.ledger.post(house.tenant_id, Correction(femto_of(amount), "house", "used", "test"), NOON)


# balance.low


@pytest.mark.parametrize(
    ("low", "balance", "becomes", "again"),
    [
        (False, 10 * UNIT, False, 0),
        (False, 10 * UNIT - 1, True, 1),
        (False, -UNIT, True, 1),
        (True, 10 * UNIT, True, 0),
        (True, 11 * UNIT - 1, True, 0),
        (True, 11 * UNIT, False, 0),
    ],
)
def test_a_balance_is_low_below_the_threshold_and_recovered_a_tenth_above(
    low: bool, balance: int, becomes: bool, again: int
) -> None:
    seen = BalanceAlert("ten_a", Femto(10 * UNIT), low, 3).seen(Femto(balance))
    assert (seen.low, seen.occasions) == (becomes, 3 + again)


async def test_each_fall_of_a_balance_is_told_once_and_wavering_is_not(house: Any, alerts: Alerts) -> None:
    await house.topped_up("20")
    await alerts.set_balance_alert(house.tenant_id, femto_of("10"), NOON, actor="test")
    await alerts.look_at_balances(NOON)
    assert await told(house, "balance.low") == []
    await spend(house, "10.5")
    await asyncio.gather(*(alerts.look_at_balances(NOON) for _ in range(4)))
    (low,) = await told(house, "balance.low")
    assert low.facts == {"balance": "9.5", "threshold": "10", "currency": "USD"}
    await house.topped_up("1")  # 10.5: above, and not recovered
    await alerts.look_at_balances(NOON)
    await spend(house, "1")
    await alerts.look_at_balances(NOON)
    assert len(await told(house, "balance.low")) == 1
    await house.topped_up("5")
    await alerts.look_at_balances(NOON)
    await spend(house, "6")
    await alerts.look_at_balances(NOON + HOUR)
    assert [notice.facts["balance"] for notice in await told(house, "balance.low")] == ["9.5", "8.5"]


async def test_a_threshold_above_the_balance_is_told_at_once_and_none_tells_nothing(
    house: Any, alerts: Alerts
) -> None:
    await house.topped_up("1")
    await alerts.set_balance_alert(house.tenant_id, femto_of("5"), NOON, actor="ann")
    await alerts.look_at_balances(NOON)
    assert len(await told(house, "balance.low")) == 1
    await alerts.set_balance_alert(house.tenant_id, None, NOON, actor="ann")
    await spend(house, "1")
    await alerts.look_at_balances(NOON)
    assert len(await told(house, "balance.low")) == 1
    deeds = (await Audit(house.database).events(house.tenant_id))[-3:]
    changed = [(e.deed.before, e.deed.after) for e in deeds if e.deed.action == "alert.balance"]
    assert changed == [(None, {"threshold": "5"}), ({"threshold": "5"}, None)]
    with pytest.raises(TenantMissing):
        await alerts.set_balance_alert("ten_nobody", femto_of("5"), NOON, actor="ann")


# budget.reached


async def budget(house: Any, share: int, **owner: str) -> str:
    """A daily budget of which one event of the house is this many hundredths."""
    made = await Rules(house.database).create_budget(
        Owner(house.tenant_id, **owner), Femto(CHARGE * 100 // share), "daily", NOON, hard=False, actor="test"
    )
    return made.id


async def test_a_budget_is_told_at_four_fifths_and_at_all_of_it_once_a_period(
    house: Any, alerts: Alerts
) -> None:
    budget_id = await budget(house, 50)  # an event is half of it
    for number, percents in enumerate(([], [100], [100])):
        await post(house.database, [house.event(number)])
        await asyncio.gather(*(alerts.look_at_budgets(NOON) for _ in range(3)))
        assert [notice.facts["percent"] for notice in await told(house, "budget.reached")] == percents
    (reached,) = await told(house, "budget.reached")
    assert reached.facts["budget_id"] == budget_id
    assert (reached.facts["since"], reached.facts["until"]) == (
        "2026-11-02T00:00:00Z",
        "2026-11-03T00:00:00Z",
    )
    assert await alerts.look_at_budgets(NOON + DAY) == 0
    await post(house.database, [house.event(number, at=NOON + DAY) for number in (4, 5)])
    await alerts.look_at_budgets(NOON + DAY)
    assert len(await told(house, "budget.reached")) == 2


async def test_four_fifths_are_told_before_all_and_not_after(house: Any, alerts: Alerts) -> None:
    await budget(house, 40)
    for number in range(3):
        await post(house.database, [house.event(number)])
        await alerts.look_at_budgets(NOON)
    assert {notice.facts["percent"] for notice in await told(house, "budget.reached")} == {80, 100}


async def test_budgets_count_their_owners_events_from_rollups_and_since(house: Any, alerts: Alerts) -> None:
    other_key = (await house.tenancy.create_key(house.tenant_id, "second", NOON)).key
    project = (await house.tenancy.key(house.key_id)).project_id
    budgets = {
        "tenant": await budget(house, 34),
        "project": await budget(house, 34, project_id=project),
        "key": await budget(house, 34, key_id=house.key_id),
        "other": await budget(house, 34, key_id=other_key.id),
    }
    await post(house.database, [house.event(0), house.event(1)])
    await Rollups(house.database, lag=timedelta(0)).build()
    await alerts.look_at_budgets(NOON)
    assert await told(house, "budget.reached") == []
    await post(house.database, [replace(house.event(2), key_id=other_key.id)])
    await alerts.look_at_budgets(NOON)
    reached = {notice.facts["budget_id"]: notice for notice in await told(house, "budget.reached")}
    assert reached.keys() == {budgets["tenant"], budgets["project"]}
    await post(house.database, [house.event(3)])
    await alerts.look_at_budgets(NOON)
    reached = {notice.facts["budget_id"]: notice for notice in await told(house, "budget.reached")}
    assert reached.keys() == {budgets["tenant"], budgets["project"], budgets["key"]}


async def test_a_budget_of_nothing_and_a_neighbours_spending_tell_nothing(house: Any, alerts: Alerts) -> None:
    await Rules(house.database).create_budget(
        Owner(house.tenant_id), Femto(0), "lifetime", NOON, hard=True, actor="test"
    )
    other = await house.other_tenant()
    await budget(other, 100)
    await post(house.database, [house.event()])
    await alerts.look_at_budgets(NOON)
    assert await told(house, "budget.reached") == await told(other, "budget.reached") == []


# key.expiring


@pytest.mark.parametrize(
    ("left", "age", "days"),
    [
        (8 * DAY, 30 * DAY, None),
        (7 * DAY + MINUTE, 30 * DAY, None),
        (7 * DAY, 30 * DAY, 7),
        (DAY + MINUTE, 30 * DAY, 7),
        (DAY, 30 * DAY, 1),
        (MINUTE, 30 * DAY, 1),
        (3 * DAY, MINUTE, None),  # it was made for three days
        (HOUR, 2 * DAY, 1),
        (HOUR, HOUR, None),
    ],
)
def test_a_key_is_told_a_week_and_a_day_before_its_end(
    left: timedelta, age: timedelta, days: int | None
) -> None:
    notice = ExpiringKey("key_a", "ten_a", "ci", NOON - age, NOON + left).notice(NOON)
    assert (None if notice is None else notice.facts["days"]) == days


async def test_an_ending_key_is_told_twice_and_a_moved_end_anew(house: Any, alerts: Alerts) -> None:
    end = NOON + 10 * DAY
    key = (await house.tenancy.create_key(house.tenant_id, "ci", NOON, terms=KeyTerms(expires_at=end))).key
    revoked = (await house.tenancy.create_key(house.tenant_id, "x", NOON, terms=KeyTerms(expires_at=end))).key
    await house.tenancy.revoke_key(revoked.id, NOON)
    for at in (NOON, end - 7 * DAY, end - 6 * DAY, end - DAY, end - HOUR, end):
        await asyncio.gather(alerts.look_at_keys(at), alerts.look_at_keys(at))
    assert [(n.facts["days"], n.facts["name"]) for n in await told(house, "key.expiring")] == [
        (7, "ci"),
        (1, "ci"),
    ]
    await house.tenancy.change_key(key.id, {"expires_at": end + 30 * DAY}, end - HOUR)
    await alerts.look_at_keys(end + 24 * DAY)
    assert (await told(house, "key.expiring"))[-1].facts == {
        "key_id": key.id,
        "name": "ci",
        "expires_at": "2026-12-12T12:00:00Z",
        "days": 7,
    }


# price.changing


async def test_a_published_row_is_told_ahead_with_the_rates_before_and_after(
    house: Any, alerts: Alerts
) -> None:
    row = house.book.rows[0]
    begins = NOON + 30 * DAY
    dearer = replace(row, effective_from=begins, tenant_id=house.tenant_id, windows=(), standard_name="flat")
    dearer = replace(dearer, standard=replace(row.standard, output=row.standard.output * 2))
    await house.prices.publish(PriceBook((dearer,)), "ann", NOON)
    other = await house.other_tenant()
    for at in (NOON, NOON + HOUR, begins - MINUTE):
        await asyncio.gather(alerts.look_at_prices(at), Alerts(house.database).look_at_prices(at))
    (changing,) = await told(house, "price.changing")
    assert await told(other, "price.changing") == []
    facts = changing.facts
    assert (facts["model"], facts["effective_from"]) == (MODEL, "2026-12-02T12:00:00Z")
    assert facts["before"]["price_row_id"] == row.id
    assert facts["after"]["price_row_id"] == dearer.id
    assert facts["before"]["rates"]["standard: output"] == "0.28"
    assert facts["after"]["rates"]["flat: output"] == "0.56"


async def test_the_end_of_an_own_price_is_told_too(house: Any, alerts: Alerts) -> None:
    row = house.book.rows[0]
    own = replace(
        row,
        tenant_id=house.tenant_id,
        effective_from=NOON + DAY,
        effective_until=NOON + 9 * DAY,
        standard=replace(row.standard, output=1),
    )
    await house.prices.publish(PriceBook((own,)), "ann", NOON)
    await alerts.look_at_prices(NOON)
    changes = {
        (notice.facts["effective_from"], notice.facts["after"]["price_row_id"])
        for notice in await told(house, "price.changing")
    }
    assert changes == {("2026-11-03T12:00:00Z", own.id), ("2026-11-11T12:00:00Z", row.id)}


async def test_a_plans_row_is_told_to_who_is_on_it_and_an_equal_row_to_nobody(
    house: Any, alerts: Alerts
) -> None:
    row, plan = house.book.rows[0], f"plan-{house.tenant_id[4:]}"
    await house.prices.create_plan(plan, "ann", NOON)
    await house.prices.place(Placement(house.tenant_id, NOON + HOUR, plan), "ann", NOON)
    other = await house.other_tenant()
    on_plan = replace(row, plan=plan, effective_from=NOON + DAY, standard=replace(row.standard, output=1))
    same = replace(on_plan, effective_from=NOON + 2 * DAY)
    await house.prices.publish(PriceBook((on_plan, same)), "ann", NOON)
    await alerts.look_at_prices(NOON)
    (changing,) = await told(house, "price.changing")
    assert changing.facts["after"]["price_row_id"] == on_plan.id
    assert await told(other, "price.changing") == []


async def test_a_new_models_first_price_changes_nothing(house: Any, alerts: Alerts) -> None:
    new = replace(house.book.rows[0], model=f"new-{house.tenant_id}", effective_from=NOON + DAY)
    await house.prices.publish(PriceBook((new,)), "ann", NOON)
    await alerts.look_at_prices(NOON)
    assert await told(house, "price.changing") == []


# promise.broken


def owed_event(house: Any, number: int) -> Any:
    usage = TokenUsage(cache_hit=512, cache_owed=512, cache_write=0, cache_miss=176, output=300)
    event = house.event(number)
    return replace(event, usage=usage, charge=rate(house.book, event.model, "USD", usage, NOON))


async def sql(house: Any, statement: str, **values: Any) -> None:
    async with house.database.transaction(OWNER) as connection:
        await connection.execute(text(statement), values)


async def recorded(house: Any, number: int, at: datetime) -> None:
    await sql(
        house,
        "UPDATE usage_event SET recorded_at = :at WHERE request_id = :id",
        at=at,
        id=house.request_id(number),
    )


async def test_broken_promises_are_told_by_tenant_and_hour_once_the_hour_is_over(
    house: Any, alerts: Alerts
) -> None:
    now = datetime.now(UTC)
    hour = now.replace(minute=0, second=0, microsecond=0)
    await post(house.database, [*(owed_event(house, number) for number in range(4)), house.event(4)])
    for number, at in enumerate((hour - 2 * HOUR, hour - HOUR - MINUTE, hour - MINUTE, hour)):
        await recorded(house, number, at)
    await recorded(house, 4, hour - MINUTE)
    await sql(house, "UPDATE promise_watermark SET recorded_before = :at", at=hour - 3 * HOUR)
    await asyncio.gather(alerts.look_at_promises(now), alerts.look_at_promises(now))
    broken = await told(house, "promise.broken")
    assert [notice.facts["owed_tokens"] for notice in broken] == [1024, 512]
    rates = house.book.rows[0].standard
    assert femto_of(broken[1].facts["saved"]) == 512 * (rates.miss - rates.hit)
    assert await alerts.look_at_promises(now) == 0
    await sql(house, "UPDATE promise_watermark SET recorded_before = :at", at=hour - 3 * HOUR)  # died between
    await alerts.look_at_promises(now)
    assert len(await told(house, "promise.broken")) == 2


async def test_an_hour_in_which_somebody_still_records_is_not_over(house: Any) -> None:
    now = datetime.now(UTC)
    hour = now.replace(minute=0, second=0, microsecond=0)
    await post(house.database, [owed_event(house, 0)])
    await recorded(house, 0, hour - MINUTE)
    await sql(house, "UPDATE promise_watermark SET recorded_before = :at", at=hour - HOUR)
    lagging = Alerts(house.database, lag=now - hour + MINUTE)
    await lagging.look_at_promises(now)
    assert await told(house, "promise.broken") == []
    await Alerts(house.database, lag=timedelta(0)).look_at_promises(now)
    assert len(await told(house, "promise.broken")) == 1
