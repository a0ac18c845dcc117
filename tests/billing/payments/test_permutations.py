"""The same facts in any order, some of them twice, come to the same books."""

import asyncio
import json
import random
from collections import Counter
from datetime import timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import text

from billing.db.access import OPERATOR_READ
from billing.payments.inbox import Inbox
from billing.payments.service import Payments
from tests.billing.conftest import NOON, House
from tests.billing.payments.fake_stripe import WEBHOOK_SECRET, FakeStripe

SAMPLES = 200
AT_ONCE = 6
STATE = {
    "accounts": """
        SELECT account, sum(amount) FROM ledger_entry WHERE tenant_id = :tenant GROUP BY 1 ORDER BY 1""",
    "movements": """
        SELECT idempotency_key, kind, reason, (SELECT max(abs(amount)) FROM ledger_entry
            WHERE transaction_id = id AND account = 'cash')
        FROM ledger_transaction WHERE tenant_id = :tenant ORDER BY 1""",
    "balance": "SELECT granted, topped_up, receivable FROM balance WHERE tenant_id = :tenant",
    "payments": """
        SELECT id, kind, parent, amount, status, reason, order_id, created_at, fact_at, fact, legs
        FROM payment WHERE tenant_id = :tenant ORDER BY id""",
    "customer": """
        SELECT customer_id, method, deleted, fact_at, fact FROM payment_customer
        WHERE tenant_id = :tenant""",
    "events": """
        SELECT id, type, outcome FROM payment_inbox WHERE tenant_id = :tenant OR type LIKE 'charge.ref%'
        AND id LIKE :events ORDER BY id""",
}


def recorded() -> tuple[str, FakeStripe]:
    """A customer's life: paid and paid back in two parts; a dispute won, one lost; another card."""
    fake = FakeStripe(NOON)
    customer_id = fake.make_customer()["id"]
    method = fake.give_card(customer_id)

    def pay(minor: int) -> str:
        paid = fake.make_payment(
            customer=customer_id,
            amount=minor,
            currency="usd",
            payment_method=method,
            confirm="true",
            metadata={"kvitto_purpose": "top_up"},
        )
        return str(paid["id"])

    first, second, third = pay(10_000), pay(5_000), pay(4_000)
    fake.make_refund(payment_intent=first, amount="3000")
    won, lost = fake.dispute(second)["id"], fake.dispute(third, 3_500)["id"]
    fake.at += timedelta(hours=30)
    fake.make_refund(payment_intent=first, amount="7000")
    fake.decide(won, "won")
    fake.give_card(customer_id)
    fake.decide(lost, "lost")
    return customer_id, fake


async def state_of(house: House, tenant_id: str, run: str) -> dict[str, Any]:
    """All that is known of a tenant, with the sample's own names taken out."""
    found = {}
    async with house.database.transaction(OPERATOR_READ) as connection:
        for name, query in STATE.items():
            rows = await connection.execute(text(query), {"tenant": tenant_id, "events": f"evt_{run}%"})
            found[name] = [tuple(str(value).replace(run, "") for value in row) for row in rows]
    return found


async def test_200_orders_of_one_set_of_webhooks_end_in_the_same_books(house: House) -> None:
    customer_id, fake = recorded()
    inbox, payments = Inbox(house.database, WEBHOOK_SECRET), Payments(house.database)
    told = json.dumps(fake.events)
    chance, turn = random.Random(20261201), asyncio.Semaphore(AT_ONCE)  # noqa: S311  samples

    async def sample(number: int, order: list[int]) -> dict[str, Any]:
        run = f"r{number:04d}x"
        events = json.loads(told.replace(fake.run, run))
        async with turn:
            tenant = await house.tenancy.create_tenant(f"{fake.run}-{run}", at=NOON)
            await payments.link(tenant.id, customer_id.replace(fake.run, run), NOON, actor="test")
            for place in order:
                await inbox.receive(*fake.signed(events[place]), fake.at)
            return await state_of(house, tenant.id, run)

    count = len(fake.events)
    orders = [list(range(count)), list(range(count))[::-1]]
    while len(orders) < SAMPLES:
        twice = chance.sample(range(count), 4)
        orders.append(chance.sample([*range(count), *twice], count + 4))
    states = await asyncio.gather(*(sample(*numbered) for numbered in enumerate(orders)))
    told_of = Counter(event["type"] for event in fake.events)
    assert told_of["payment_intent.created"] == 3
    assert told_of["refund.created"] == told_of["charge.dispute.created"] == told_of["customer.updated"] == 2
    for order, state in zip(orders, states, strict=True):
        for name, rows in states[0].items():
            assert state[name] == rows, f"{name} after {order}"
    ((granted, topped_up, receivable),) = states[0]["balance"]
    assert (granted, Decimal(topped_up) / 10**13, receivable) == ("0", 5_000 + 500, "0")
    assert len(states[0]["movements"]) == 3 + 2 + 2 + 1
    assert await house.ledger.check_integrity() == []
