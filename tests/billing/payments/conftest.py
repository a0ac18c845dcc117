"""A house whose tenant Stripe knows, and an imitated Stripe."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from billing.db.access import OPERATOR_READ
from billing.ledger.balance import Balance
from billing.payments import repository
from billing.payments.inbox import Inbox, Receipt
from billing.payments.outbox import Outbox
from billing.payments.payment import Payment
from billing.payments.service import Payments
from billing.payments.stripe import Stripe, StripeAccess
from tests.billing.conftest import NOON, House
from tests.billing.payments.fake_stripe import SECRET_KEY, WEBHOOK_SECRET, FakeStripe


@dataclass
class Till:
    """Everything between one tenant and Stripe; ``fake.at`` is the time on both sides."""

    house: House
    fake: FakeStripe
    stripe: Stripe
    inbox: Inbox
    outbox: Outbox
    payments: Payments
    customer_id: str

    @property
    def at(self) -> datetime:
        return self.fake.at

    async def deliver(self, event: dict[str, Any], *, at: datetime | None = None) -> Receipt:
        """An event, signed when it is delivered."""
        body, header = self.fake.signed(event, at)
        return await self.inbox.receive(body, header, at or self.at)

    async def deliver_all(self) -> None:
        for event in self.fake.events:
            await self.deliver(event)

    async def balance(self) -> Balance:
        return await self.house.ledger.balance(self.house.tenant_id)

    async def cents(self) -> int:
        """Paid credit, in cents."""
        return (await self.balance()).topped_up // 10**13

    async def rows(self) -> dict[str, Payment]:
        async with self.house.database.transaction(OPERATOR_READ) as connection:
            found = await repository.select_payments(connection, self.house.tenant_id, 1000)
        return {payment.id: payment for payment in found}

    def paid(self, minor: int = 10_000, **metadata: str) -> dict[str, Any]:
        """A top-up that somebody paid on a page of Stripe's."""
        method = self.fake.give_card(self.customer_id)
        return self.fake.make_payment(
            customer=self.customer_id,
            amount=minor,
            currency="usd",
            payment_method=method,
            confirm="true",
            metadata={"kvitto_purpose": "top_up", **metadata},
        )

    async def other(self) -> "Till":
        """Another tenant, with a customer of its own."""
        return await known(await self.house.other_tenant(), self.fake, self.stripe)


async def known(house: House, fake: FakeStripe, stripe: Stripe) -> Till:
    customer_id = fake.make_customer()["id"]
    payments = Payments(house.database)
    await payments.link(house.tenant_id, customer_id, fake.at, actor="test")
    inbox = Inbox(house.database, WEBHOOK_SECRET)
    return Till(house, fake, stripe, inbox, Outbox(house.database, stripe), payments, customer_id)


@pytest.fixture
async def fake() -> AsyncIterator[FakeStripe]:
    fake = FakeStripe(NOON)
    async with fake.wire.served():
        yield fake


@pytest.fixture
async def stripe(fake: FakeStripe) -> AsyncIterator[Stripe]:
    client = Stripe(StripeAccess(SECRET_KEY, fake.wire.url), lambda: fake.at, timeout_s=1)
    yield client
    await client.close()


@pytest.fixture
async def till(house: House, fake: FakeStripe, stripe: Stripe) -> Till:
    return await known(house, fake, stripe)
