"""What Stripe is told: once in effect, however often it is tried, whatever fails between."""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from billing.db.access import OWNER, SETTLER
from billing.errors import PaymentUnknown
from billing.payments.order import TopUpOrder
from billing.payments.outbox import Outbox, put
from billing.payments.stripe import Stripe, StripeAccess
from billing.queue import Job, Queue
from tests.billing.payments.conftest import Till
from tests.billing.payments.fake_stripe import SECRET_KEY, invalid
from tests.billing.payments.stripe_wire import FAULTS
from tests.billing.payments.telling import (
    UNIT,
    ask,
    credited_once,
    send,
)


async def test_a_key_that_stripe_does_not_accept_costs_no_order(till: Till) -> None:
    till.fake.give_card(till.customer_id)
    await ask(till)
    wrong = Stripe(StripeAccess("sk_test_wrong", till.fake.wire.url), lambda: till.at, timeout_s=1)
    try:
        await Outbox(till.house.database, wrong).send_due(till.at)
    finally:
        await wrong.close()
    (order,) = await till.payments.orders(till.house.tenant_id)
    assert (order.outcome, order.reason) == (
        "open",
        "Stripe is not available: it does not accept the secret key",
    )
    assert (await send(till, later=timedelta(hours=1))).outcome == "done"


async def test_no_secret_is_written_anywhere(till: Till, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    till.fake.give_card(till.customer_id)
    await ask(till)
    for call, fault in enumerate(FAULTS, 1):
        till.fake.wire.faults[call] = fault
    for _ in FAULTS:
        await send(till, later=timedelta(hours=2))
    quoting = invalid(f"No such key: {SECRET_KEY}")

    def refuse(**_: Any) -> dict[str, Any]:
        raise quoting

    till.fake.wire.endpoints["POST", "/v1/payment_intents"] = refuse
    async with till.house.database.transaction(SETTLER) as connection:
        order_id = await put(connection, till.house.tenant_id, "quoting", TopUpOrder(100, "USD"), till.at)
    await send(till)
    assert "No such key: …" in ((await till.payments.order(order_id)).reason or "")
    tables = ("payment", "payment_inbox", "payment_outbox", "payment_customer", "audit_event")
    async with till.house.database.transaction(OWNER) as connection:
        written = [
            str((await connection.execute(text(f"SELECT * FROM {table}"))).all())  # noqa: S608  literals above
            for table in tables
        ]
    for sink in (caplog.text, *written, repr(StripeAccess(SECRET_KEY))):
        assert SECRET_KEY not in sink
        assert "Bearer" not in sink


async def test_what_a_transaction_wants_told_is_told_by_the_queue(till: Till, database_url: str) -> None:
    till.fake.give_card(till.customer_id)
    stop = asyncio.Event()
    (order,) = await ask(till)

    async def tell(order_id: str) -> None:
        if order_id == order.id:  # others are of other tests
            await till.outbox.send(order_id, till.at)
            stop.set()

    async with asyncio.timeout(30):
        await Queue(database_url, [Job("tell_stripe", tell)]).run(stop)
    await credited_once(till)


async def test_an_order_can_be_hurried_and_none_is_unknown(till: Till) -> None:
    till.fake.give_card(till.customer_id)
    (order,) = await ask(till)
    till.fake.wire.faults[1] = "429"
    await send(till)
    assert await till.outbox.send(order.id, till.at) == []
    assert await till.cents() == 0
    (version,) = await till.outbox.send(order.id, till.at, now=True)
    assert version.balance == 20 * UNIT
    with pytest.raises(PaymentUnknown):
        await till.outbox.send("top_up-nobody", till.at)
