"""Credit that asks to be topped up: once a crossing, whoever looks and how often."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from billing.errors import AmountInvalid, TenantMissing
from billing.ledger.auto_top_up import AutoTopUp
from billing.ledger.balance import BillingTerms
from billing.ledger.credit import Correction, Grant
from billing.money import Femto, femto_of

AT = datetime(2026, 11, 30, 9, 30, tzinfo=UTC)
UNIT = femto_of("1")
RULE = AutoTopUp(femto_of("5"), femto_of("20"))


@pytest.mark.parametrize(
    ("rule", "balance", "due"),
    [
        (RULE, 5 * UNIT - 1, True),
        (RULE, 5 * UNIT, False),
        (RULE, -UNIT, True),
        (AutoTopUp(RULE.threshold, RULE.amount, enabled=False), 0, False),
        (AutoTopUp(RULE.threshold, RULE.amount, armed=False), 0, False),
    ],
)
def test_a_top_up_is_due_below_the_threshold_while_enabled_and_armed(
    rule: AutoTopUp, balance: int, due: bool
) -> None:
    assert rule.top_up_due(Femto(balance)) is due


async def spend(house: Any, amount: str) -> None:
    await house.ledger.post(house.tenant_id, Correction(femto_of(amount), "house", "used", "test"), AT)


async def pay(house: Any, amount: str, key: str | None = None) -> None:
    await house.ledger.post(
        house.tenant_id, Grant(femto_of(amount), "topped_up", "paid", "test", idempotency_key=key), AT
    )


async def asked(house: Any) -> list[int]:
    await house.ledger.request_top_ups(AT)
    return [request.number for request in await house.ledger.top_up_requests(house.tenant_id)]


async def test_each_crossing_is_asked_for_once(house: Any) -> None:
    await pay(house, "10")
    await house.ledger.set_auto_top_up(house.tenant_id, RULE, AT, actor="test")
    assert await asked(house) == []
    await spend(house, "6")
    await asyncio.gather(*(house.ledger.request_top_ups(AT) for _ in range(4)))
    (request,) = await house.ledger.top_up_requests(house.tenant_id)
    assert (request.amount, request.crossed_at.balance) == (20 * UNIT, 4 * UNIT)
    await spend(house, "1")
    await pay(house, "0.5")  # not enough to be above again: the payment that was asked for may have failed
    assert await asked(house) == [1]
    await pay(house, "20", request.idempotency_key)
    assert await asked(house) == [1]
    await spend(house, "20")
    assert await asked(house) == [1, 2]


async def test_a_top_up_spent_before_anyone_looked_does_not_hide_the_next_crossing(house: Any) -> None:
    await house.ledger.set_auto_top_up(house.tenant_id, RULE, AT, actor="test")
    assert await asked(house) == [1]
    await pay(house, "20")
    await spend(house, "19")
    assert await asked(house) == [1, 2]


async def test_a_raised_credit_limit_is_above_the_threshold_again(house: Any) -> None:
    await house.ledger.agree(house.tenant_id, BillingTerms("postpaid", femto_of("1")), AT, actor="test")
    await house.ledger.set_auto_top_up(house.tenant_id, RULE, AT, actor="test")
    assert await asked(house) == [1]
    await house.ledger.agree(house.tenant_id, BillingTerms("postpaid", femto_of("50")), AT, actor="test")
    await spend(house, "46")
    assert await asked(house) == [1, 2]


async def test_a_rule_switched_off_asks_for_nothing_and_its_numbers_go_on(house: Any) -> None:
    await pay(house, "1")
    off = AutoTopUp(RULE.threshold, RULE.amount, enabled=False)
    await house.ledger.set_auto_top_up(house.tenant_id, RULE, AT, actor="test")
    assert await asked(house) == [1]
    await house.ledger.set_auto_top_up(house.tenant_id, off, AT, actor="test")
    assert await asked(house) == [1]
    await house.ledger.set_auto_top_up(house.tenant_id, RULE, AT, actor="test")
    assert await asked(house) == [1, 2]


async def test_nothing_is_no_top_up_and_nobody_has_no_rule(house: Any) -> None:
    with pytest.raises(AmountInvalid):
        AutoTopUp(RULE.threshold, Femto(0))
    with pytest.raises(TenantMissing):
        await house.ledger.set_auto_top_up("ten_nobody", RULE, AT, actor="test")
