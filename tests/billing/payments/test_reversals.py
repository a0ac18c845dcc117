"""Money that goes back: refunds made at Stripe, refunds that fail, disputes; whatever is left of it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from billing.ledger.credit import Correction, Grant
from billing.money import Femto, femto_of
from billing.payments.fact import Kind, PaymentFact
from billing.payments.payment import Payment, first
from tests.billing.conftest import NOON
from tests.billing.payments.conftest import Till

UNIT = femto_of("1")


def thing(kind: Kind, status: str, legs: int = 0, amount: int = UNIT) -> Payment:
    parent = "pi_1" if kind in {"refund", "dispute"} else None
    return Payment("x_1", "ten_1", kind, parent, Femto(amount), status, None, None, NOON, NOON, "evt_1", legs)


@pytest.mark.parametrize(
    ("kind", "status", "moved", "due"),
    [
        ("payment", "requires_payment_method", 0, []),
        ("payment", "processing", 0, []),
        ("payment", "succeeded", 0, [1]),
        ("payment", "succeeded", 1, []),
        ("refund", "pending", 0, [1]),
        ("refund", "succeeded", 1, []),
        ("refund", "failed", 0, [1, 2]),
        ("refund", "canceled", 1, [2]),
        ("dispute", "warning_needs_response", 0, []),
        ("dispute", "needs_response", 0, [1]),
        ("dispute", "lost", 0, [1]),
        ("dispute", "won", 0, [1, 2]),
        ("dispute", "won", 1, [2]),
        ("dispute", "won", 2, []),
        ("dispute", "lost", 2, [3]),
        ("dispute", "won", 3, [4]),
        ("dispute", "warning_closed", 1, [2]),
        ("invoice", "paid", 0, [1]),
        ("invoice", "open", 0, []),
    ],
)
def test_the_legs_that_are_due_follow_from_the_state_and_from_what_was_moved(
    kind: Kind, status: str, moved: int, due: list[int]
) -> None:
    assert list(thing(kind, status, moved).legs_due()) == due
    assert list(replace(thing(kind, status), amount=Femto(0)).legs_due()) == []


def said(status: str, seconds: int, name: str = "evt_1", kind: Kind = "payment") -> PaymentFact:
    parent = "pi_1" if kind == "dispute" else None
    at = NOON + timedelta(seconds=seconds)
    return PaymentFact("x_1", kind, 100, "USD", status, NOON, "cus_1", parent, None, {}, at, name)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (said("processing", 0), said("requires_payment_method", 1)),
        (said("requires_action", 0), said("processing", 0)),
        (said("processing", 60, "answer"), said("succeeded", 0)),
        (said("needs_response", 9, kind="dispute"), said("lost", 0, kind="dispute")),
        (said("won", 0, kind="dispute"), said("lost", 1, kind="dispute")),
        (said("succeeded", 0, "evt_1"), said("succeeded", 0, "evt_2")),
        (said("something_new", 0), said("processing", 0)),
    ],
)
def test_the_newer_fact_counts_whichever_comes_first(older: PaymentFact, newer: PaymentFact) -> None:
    """A final state is newer than any other: an answer is dated by our clock, which may run ahead."""
    end = first(newer, "ten_1", "USD")
    assert first(older, "ten_1", "USD").learn(newer, "USD") == end
    assert end.learn(older, "USD") == end
    assert end.learn(newer, "USD") == end


async def spend(till: Till, amount: str) -> None:
    used = Correction(femto_of(amount), "house", "used", "test")
    await till.house.ledger.post(till.house.tenant_id, used, NOON)


async def test_a_dispute_takes_the_money_back_and_lets_debt_arise_and_won_gives_it_back(till: Till) -> None:
    paid = till.paid(10_000)
    await till.deliver_all()
    granted = Grant(7 * UNIT, "granted", "welcome", "test")
    await till.house.ledger.grant(till.house.tenant_id, granted, NOON)
    await spend(till, "67")  # the granted part first
    dispute = till.fake.dispute(paid["id"])
    await till.deliver(till.fake.events[-1])
    balance = await till.balance()
    assert (balance.granted, balance.topped_up) == (0, -60 * UNIT)
    till.fake.at += timedelta(days=20)
    till.fake.decide(dispute["id"], "won")
    await till.deliver(till.fake.events[-1])
    assert (await till.balance()).topped_up == 40 * UNIT
    assert await till.house.ledger.check_integrity() == []


async def test_debt_from_a_dispute_leaves_granted_credit_alone(till: Till) -> None:
    paid = till.paid(10_000)
    await till.deliver_all()
    await spend(till, "100")
    await till.house.ledger.grant(till.house.tenant_id, Grant(7 * UNIT, "granted", "x", "test"), NOON)
    till.fake.dispute(paid["id"])
    await till.deliver(till.fake.events[-1])
    balance = await till.balance()
    assert (balance.granted, balance.topped_up, balance.spendable) == (7 * UNIT, -100 * UNIT, -93 * UNIT)
    assert await till.house.ledger.check_integrity() == []


async def test_a_dispute_that_is_lost_after_it_was_won_is_taken_again(till: Till) -> None:
    paid = till.paid(10_000)
    dispute = till.fake.dispute(paid["id"])
    for days, status in ((20, "won"), (40, "lost")):
        till.fake.at = NOON + timedelta(days=days)
        till.fake.decide(dispute["id"], status)
    for event in till.fake.events:
        await till.deliver(event)
    assert await till.cents() == 0
    assert (await till.rows())[dispute["id"]].legs == 3


async def test_an_inquiry_moves_nothing(till: Till) -> None:
    paid = till.paid(10_000)
    till.fake.dispute(paid["id"], status="warning_needs_response")
    await till.deliver_all()
    assert await till.cents() == 10_000


async def test_a_refund_that_fails_comes_back(till: Till) -> None:
    paid = till.paid(10_000)
    refund = till.fake.make_refund(payment_intent=paid["id"], amount="4000")
    await till.deliver_all()
    assert await till.cents() == 6_000
    till.fake.at += timedelta(days=3)
    till.fake.fail_refund(refund["id"])
    await till.deliver(till.fake.events[-1])
    assert await till.cents() == 10_000
    assert (await till.rows())[refund["id"]].reason == "expired_or_canceled_card"


async def test_a_refund_of_a_payment_that_did_not_come_in_takes_nothing_until_it_does(till: Till) -> None:
    method = till.fake.give_card(till.customer_id, "processing")
    purpose = {"kvitto_purpose": "top_up"}
    paid = till.fake.make_payment(
        customer=till.customer_id,
        amount=10_000,
        currency="usd",
        payment_method=method,
        confirm="true",
        metadata=purpose,
    )
    till.fake.objects[paid["id"]] |= {"amount_received": 10_000, "latest_charge": "ch_1"}
    till.fake.make_refund(payment_intent=paid["id"], amount="1000")
    await till.deliver_all()
    assert await till.cents() == 0
    till.fake.succeed(paid["id"])
    await till.deliver(till.fake.events[-1])
    assert await till.cents() == 9_000


async def test_somebody_elses_dispute_is_not_ours(till: Till) -> None:
    """A dispute of a payment that is another tenant's moves that tenant's money, whoever else is named."""
    other = await till.other()
    paid = other.paid(5_000)
    till.paid(10_000)
    till.fake.dispute(paid["id"])
    till.fake.events[-1]["data"]["object"]["metadata"] = {"kvitto_tenant": till.house.tenant_id}
    await till.deliver_all()
    assert (await till.cents(), await other.cents()) == (10_000, 0)


@pytest.mark.parametrize(
    ("currency", "minor", "amount"),
    [("USD", 1, "0.01"), ("JPY", 500, "500"), ("KWD", 1234, "1.234"), ("ISK", 100, "1"), ("EUR", 0, "0")],
)
def test_amounts_are_in_the_smallest_unit_of_their_currency(currency: str, minor: int, amount: str) -> None:
    from billing.errors import AmountInvalid
    from billing.payments.minor import cents_to_minor, from_minor, to_minor

    assert from_minor(minor, currency) == femto_of(amount)
    if minor:
        assert to_minor(femto_of(amount), currency) == minor
    assert cents_to_minor(-12_00, "USD") == -1_200
    assert cents_to_minor(12_00, "JPY") == 12
    with pytest.raises(AmountInvalid):
        cents_to_minor(12_50, "JPY")
    for odd in (femto_of(amount) + 1, 0, -1):
        with pytest.raises(AmountInvalid):
            to_minor(Femto(odd), currency)


async def test_a_customers_default_method_is_the_newest_said(till: Till) -> None:
    till.fake.give_card(till.customer_id)
    till.fake.at += timedelta(minutes=5)
    newest = till.fake.give_card(till.customer_id)
    events: list[Any] = list(till.fake.told("customer.updated"))
    for event in reversed(events):
        await till.deliver(event)
    found = {one.tenant_id: one for one in await till.payments.customers()}[till.house.tenant_id]
    assert (found.method, found.deleted) == (newest, None)
    gone = dict(till.fake.events[-1], id="evt_gone" + till.fake.run, type="customer.deleted")
    await till.deliver(gone)
    found = {one.tenant_id: one for one in await till.payments.customers()}[till.house.tenant_id]
    assert found.deleted == f"customer.deleted:{gone['id']}"
