"""What tests of the telling end share: asking, sending, and the laws that hold afterwards."""

from datetime import timedelta

from billing.ledger.auto_top_up import AutoTopUp
from billing.money import femto_of
from billing.payments.order import Order
from billing.payments.service import RefundAsked
from tests.billing.payments.conftest import Till

UNIT = femto_of("1")
RULE = AutoTopUp(femto_of("5"), femto_of("20"))


async def ask(till: Till) -> list[Order]:
    """The tenant's balance is low: its rule asks, and the payment is ordered."""
    if not await till.payments.orders(till.house.tenant_id):
        await till.house.ledger.set_auto_top_up(till.house.tenant_id, RULE, till.at, actor="test")
    await till.house.ledger.request_top_ups(till.at, till.payments.order_top_ups)
    return await till.payments.orders(till.house.tenant_id)


async def send(till: Till, *, later: timedelta = timedelta(0)) -> Order:
    """Attempt what is due of this tenant; its newest order after that."""
    till.fake.at += later
    for order in await till.payments.orders(till.house.tenant_id):
        await till.outbox.send(order.id, till.at)
    return (await till.payments.orders(till.house.tenant_id))[0]


def captured(till: Till) -> int:
    """What Stripe has taken from the tenant, in cents."""
    return sum(
        one["amount_received"]
        for one in till.fake.of("payment_intent")
        if one["customer"] == till.customer_id
    )


async def credited_once(till: Till, cents: int = 2_000) -> None:
    assert captured(till) == await till.cents() == cents
    rows = await till.house.ledger.movements(till.house.tenant_id)
    keys = [row.idempotency_key for row in rows if row.effect.kind == "credit"]
    succeeded = {one["id"] for one in till.fake.of("payment_intent") if one["status"] == "succeeded"}
    assert keys == [f"stripe:{payment_id}:1" for payment_id in succeeded if payment_id in await till.rows()]
    assert await till.house.ledger.check_integrity() == []


async def paid_in(till: Till, minor: int = 10_000) -> str:
    paid = till.paid(minor)
    await till.deliver(till.fake.events[-1])
    return str(paid["id"])


def asked(payment_id: str, amount: str | None, key: str = "k") -> RefundAsked:
    return RefundAsked(payment_id, None if amount is None else femto_of(amount), "asked for", "test", key)


async def refunds_agree(till: Till, payment_id: str, cents: int) -> None:
    """Stripe has paid back as much as the ledger says."""
    made = [one for one in till.fake.of("refund") if one["payment_intent"] == payment_id]
    back = sum(one["amount"] for one in made if one["status"] != "failed")
    paid = till.fake.objects[payment_id]["amount_received"]
    assert (back, await till.cents()) == (cents, paid - cents)
    assert await till.house.ledger.check_integrity() == []
