"""Automatic top-ups: charged once, credited once, whatever fails between; declined, the rule backs off."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from billing.db.access import OPERATOR_READ, SETTLER
from billing.money import femto_of
from billing.notify.service import Notices
from billing.payments.order import TopUpOrder
from billing.payments.outbox import put
from tests.billing.payments.conftest import Till
from tests.billing.payments.stripe_wire import FAULTS, Fault
from tests.billing.payments.telling import (
    RULE,
    ask,
    captured,
    credited_once,
    send,
)


async def test_a_rule_that_asks_is_paid_by_the_default_method_and_credited_once(till: Till) -> None:
    till.fake.give_card(till.customer_id)
    (order,) = await ask(till)
    assert order.id == f"top_up-{till.house.tenant_id}-auto-top-up-1"
    done = await send(till)
    assert (done.outcome, done.attempts, done.reason) == ("done", 1, None)
    assert (await till.rows())[done.object_id or ""].order_id == order.id
    await till.deliver_all()
    await credited_once(till)
    (version,) = await till.outbox.send(order.id, till.at, now=True)
    assert version.balance == femto_of("20")
    assert await ask(till) == [done], "the balance is above the threshold again"


async def test_the_webhook_may_come_before_the_answer_or_without_it(till: Till) -> None:
    till.fake.give_card(till.customer_id)
    await ask(till)
    till.fake.wire.faults[2] = "silence_after"
    noted = await send(till)
    assert (noted.outcome, noted.reason) == ("open", "Stripe is not available: no answer")
    await till.deliver_all()
    await credited_once(till)
    assert (await send(till, later=timedelta(seconds=31))).outcome == "done"
    await credited_once(till)


@pytest.mark.parametrize("webhooks_first", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", [1, 2])
async def test_whatever_fails_on_the_way_a_top_up_is_charged_and_credited_once(
    till: Till, fault: Fault, call: int, webhooks_first: bool
) -> None:
    """Of the two calls, the customer and its payment, each fails in every way; the next attempts do it."""
    till.fake.give_card(till.customer_id)
    await ask(till)
    till.fake.wire.faults[call] = fault
    assert (await send(till)).outcome == "open"
    if webhooks_first:
        await till.deliver_all()
    assert (await send(till, later=timedelta(hours=1))).outcome == "done"
    await till.deliver_all()
    await credited_once(till)


async def test_an_order_that_stripe_has_forgotten_is_looked_up_before_it_is_repeated(till: Till) -> None:
    """Keys are kept for a day: behind it the payment that was made is found, over pages, and not repeated."""
    till.fake.give_card(till.customer_id)
    await ask(till)
    till.fake.wire.faults[2] = "reset_after"
    await send(till)
    till.fake.wire.kept.clear()
    till.fake.page_max = 2
    till.fake.at += timedelta(hours=1)
    for _ in range(5):
        till.paid(100)
    assert (await send(till, later=timedelta(hours=24))).outcome == "done"
    assert captured(till) == 2_000 + 5 * 100
    assert await till.cents() == 2_000


async def test_without_an_answer_it_is_tried_again_after_growing_pauses(till: Till) -> None:
    till.fake.give_card(till.customer_id)
    (order,) = await ask(till)
    till.fake.wire.faults = dict.fromkeys(range(1, 100), "429")
    pauses = []
    for attempt in range(1, 11):
        order = await send(till)
        assert (order.outcome, order.attempts) == ("open", attempt)
        assert (await send(till)).attempts == attempt, "it is not due yet"
        assert order.due_at is not None
        pauses.append(int((order.due_at - till.at).total_seconds()))
        till.fake.at = order.due_at
    assert pauses == [30, 60, 120, 240, 480, 960, 1920, 3840, 3840, 3840]
    till.fake.wire.faults.clear()
    assert (await send(till)).outcome == "done"
    await credited_once(till)


async def test_two_that_send_the_same_order_at_once_charge_once(till: Till) -> None:
    till.fake.give_card(till.customer_id)
    (order,) = await ask(till)
    await asyncio.gather(*(till.outbox.send(order.id, till.at) for _ in range(4)))
    await credited_once(till)


@pytest.mark.parametrize("code", ["insufficient_funds", "authentication_required"])
async def test_a_decline_leaves_the_rule_which_asks_again_later_and_later(till: Till, code: str) -> None:
    till.fake.give_card(till.customer_id, code)
    await ask(till)
    for asked, hours in enumerate((1, 8, 24, 72, 168, 168, 168), 1):
        failed = await send(till)
        assert (failed.outcome, failed.reason) == ("failed", code)
        await till.deliver_all()
        till.fake.at += timedelta(hours=hours, seconds=-1)
        assert len(await ask(till)) == asked
        till.fake.at += timedelta(seconds=1)
        assert len(await ask(till)) == asked + 1
    assert await till.cents() == 0
    told = await failures(till)
    assert [facts["code"] for facts in told] == [code] * 7
    assert len({facts["order_id"] for facts in told}) == 7, "each order once, by answer and webhook"
    assert (told[0]["amount"], told[0]["currency"]) == ("20", "USD")
    till.fake.give_card(till.customer_id)
    assert (await send(till)).outcome == "done"
    assert len(await failures(till)) == 7
    await credited_once(till)
    rule = text("SELECT enabled, armed, declines, retry_at FROM auto_top_up WHERE tenant_id = :tenant")
    async with till.house.database.transaction(OPERATOR_READ) as connection:
        rows = (await connection.execute(rule, {"tenant": till.house.tenant_id})).all()
    assert [tuple(row) for row in rows] == [(True, True, 0, None)]


async def failures(till: Till) -> list[Mapping[str, Any]]:
    """What the tenant was told of payments that failed."""
    told = await Notices(till.house.database).notices(till.house.tenant_id)
    return [each.notice.facts for each in told if each.notice.kind == "payment.failed"]


async def test_without_a_payment_method_nothing_is_charged_and_the_rule_backs_off(till: Till) -> None:
    await ask(till)
    failed = await send(till)
    assert (failed.outcome, failed.reason) == ("failed", "payment declined: no_payment_method")
    assert [facts["code"] for facts in await failures(till)] == ["no_payment_method"]
    till.fake.give_card(till.customer_id)
    assert len(await ask(till)) == 1
    till.fake.at += timedelta(hours=1)
    assert len(await ask(till)) == 2
    assert (await send(till)).outcome == "done"
    await credited_once(till)


async def test_a_debit_that_is_processed_for_days_is_credited_when_it_succeeds(till: Till) -> None:
    till.fake.give_card(till.customer_id, "processing")
    await ask(till)
    done = await send(till)
    assert (done.outcome, await till.cents()) == ("done", 0)
    till.fake.at += timedelta(days=4)
    till.fake.succeed(done.object_id or "")
    await till.deliver_all()
    await credited_once(till)


async def test_a_tenant_that_stripe_does_not_know_is_left_to_people(till: Till) -> None:
    other = await till.house.other_tenant()
    await other.ledger.set_auto_top_up(other.tenant_id, RULE, till.at, actor="test")
    requests = await other.ledger.request_top_ups(till.at, till.payments.order_top_ups)
    assert other.tenant_id in {request.tenant_id for request in requests}
    assert await till.payments.orders(other.tenant_id) == []


async def test_a_changed_payment_method_between_two_attempts_does_not_charge_twice(till: Till) -> None:
    till.fake.give_card(till.customer_id)
    await ask(till)
    till.fake.wire.faults[2] = "reset_after"
    await send(till)
    till.fake.give_card(till.customer_id)
    assert (await send(till, later=timedelta(hours=1))).outcome == "open", "the key names another call"
    assert (await send(till, later=timedelta(hours=1))).outcome == "done"
    await credited_once(till)


async def test_a_rule_that_was_switched_off_meanwhile_charges_nobody(till: Till) -> None:
    till.fake.give_card(till.customer_id)
    await ask(till)
    await till.house.ledger.set_auto_top_up(
        till.house.tenant_id, replace(RULE, enabled=False), till.at, actor="test"
    )
    assert (await send(till)).outcome == "failed"
    assert till.fake.wire.calls == []
    assert await failures(till) == []
    by_hand = TopUpOrder(700, "USD")
    async with till.house.database.transaction(SETTLER) as connection:
        await put(connection, till.house.tenant_id, "asked-on-a-page", by_hand, till.at)
    await send(till)
    await credited_once(till, 700)


async def test_a_rule_that_is_switched_off_after_an_attempt_still_learns_what_came_of_it(till: Till) -> None:
    till.fake.give_card(till.customer_id)
    await ask(till)
    till.fake.wire.faults[2] = "reset_after"
    await send(till)
    await till.house.ledger.set_auto_top_up(
        till.house.tenant_id, replace(RULE, enabled=False), till.at, actor="test"
    )
    assert (await send(till, later=timedelta(hours=1))).outcome == "done"
    await credited_once(till)
