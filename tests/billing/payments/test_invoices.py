"""Invoices that Stripe collects: told when they are issued, booked when they are paid, each once."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from billing.db.transaction import Database
from billing.invoicing.invoice import Invoice, Payment
from billing.invoicing.service import Invoicing
from billing.invoicing.terms import Fee
from billing.ledger.credit import Grant
from billing.money import FEMTO_PER_CENT, Femto
from billing.payments.inbox import Inbox
from billing.payments.invoices import StripeInvoices
from billing.payments.outbox import Outbox
from billing.payments.service import Payments
from billing.payments.stripe import Stripe
from tests.billing.invoicing.conftest import NOW, Firm, digest, firm_of
from tests.billing.payments.fake_stripe import WEBHOOK_SECRET, FakeStripe


@dataclass(frozen=True)
class Collecting:
    """A firm whose tenant Stripe knows, and which owes 24.80 each month."""

    firm: Firm
    fake: FakeStripe
    stripe: Stripe
    customer_id: str

    async def issued(self) -> Invoice:
        """Its first invoice, of which Stripe has been told."""
        first, *_ = await self.firm.close()
        await self.send()
        return first

    async def send(self) -> None:
        await Outbox(self.firm.database, self.stripe, StripeInvoices()).send_due(self.fake.at)

    async def tell_all(self) -> None:
        """Every event, thrice: in order, and backwards under other ids and the same."""
        inbox = Inbox(self.firm.database, WEBHOOK_SECRET, StripeInvoices())
        backwards = self.fake.events[::-1]
        again = [dict(event, id=self.fake.new_id("evt")) for event in backwards]
        for event in [*self.fake.events, *again, *backwards]:
            await inbox.receive(*self.fake.signed(event), self.fake.at)

    async def now(self, invoice: Invoice) -> Invoice:
        return await self.firm.invoicing.invoice(invoice.number)

    def pushed(self, invoice: Invoice) -> Any:
        """Stripe's invoice of ours."""
        (found,) = (
            one for one in self.fake.of("invoice") if one["metadata"]["kvitto_invoice"] == invoice.number
        )
        return found


@pytest.fixture
async def collecting(database: Database, fake: FakeStripe, stripe: Stripe) -> Collecting:
    firm = await firm_of(database)
    invoicing = Invoicing(
        database, digest, firm.log, firm.signer, lag=timedelta(0), collector=StripeInvoices()
    )
    firm = replace(firm, invoicing=invoicing)
    await firm.agreed(tax_rate="24", fees=(Fee("support", 2_000),))
    customer_id = fake.make_customer()["id"]
    await Payments(database).link(firm.tenant_id, customer_id, fake.at, actor="test")
    return Collecting(firm, fake, stripe, customer_id)


async def test_an_invoice_is_pushed_when_it_is_issued_and_paid_once_when_stripe_has_collected_it(
    collecting: Collecting,
) -> None:
    await collecting.firm.ledger.grant(
        collecting.firm.tenant_id, Grant(Femto(300 * FEMTO_PER_CENT), "granted", "trial", "test"), NOW
    )
    invoice = await collecting.issued()
    assert (invoice.total_cents, invoice.due_cents) == (2_480, 2_180)
    stripes = collecting.pushed(invoice)
    assert (stripes["total"], stripes["status"]) == (2_180, "open")
    items = [
        (item["description"], item["amount"])
        for item in collecting.fake.of("invoiceitem")
        if item["invoice"] == stripes["id"]
    ]
    assert [amount for _, amount in items] == [2_000, -300, 480]
    assert items[1:] == [("Paid from credit", -300), ("Tax", 480)]
    await collecting.tell_all()
    assert (await collecting.now(invoice)).open_cents == 2_180
    collecting.fake.pay(stripes["id"])
    await collecting.tell_all()
    paid = await collecting.now(invoice)
    assert (paid.state, paid.paid_cents) == ("paid", 2_180)
    (payment,) = await collecting.firm.settling.payments(invoice.number)
    assert (payment.reference, payment.method) == (stripes["id"], "stripe")
    assert (await collecting.firm.ledger.balance(collecting.firm.tenant_id)).topped_up == 0
    await collecting.firm.sound()


async def test_what_a_card_pays_at_once_is_booked_by_the_answer(collecting: Collecting) -> None:
    collecting.fake.give_card(collecting.customer_id)
    invoice = await collecting.issued()
    assert (await collecting.now(invoice)).state == "paid"
    await collecting.tell_all()
    assert len(await collecting.firm.settling.payments(invoice.number)) == 1
    await collecting.firm.sound()


async def test_what_was_transferred_meanwhile_is_not_paid_twice_and_the_rest_becomes_credit(
    collecting: Collecting,
) -> None:
    firm, invoice = collecting.firm, await collecting.issued()
    await firm.settling.pay(Payment(invoice.number, 2_000, "transfer", "t-1", NOW, "test"))
    owed = (await firm.ledger.balance(firm.tenant_id)).total
    collecting.fake.pay(collecting.pushed(invoice)["id"])
    await collecting.tell_all()
    assert (await collecting.now(invoice)).state == "paid"
    assert [each.cents for each in await firm.settling.payments(invoice.number)] == [2_000, 480]
    assert (await firm.ledger.balance(firm.tenant_id)).total - owed == 2_480 * FEMTO_PER_CENT
    assert await firm.ledger.check_integrity() == []


async def test_a_tenant_that_stripe_does_not_know_pays_by_transfer(collecting: Collecting) -> None:
    other = await firm_of(collecting.firm.database)
    other = replace(other, invoicing=collecting.firm.invoicing)
    await other.agreed(fees=(Fee("support", 2_000),))
    assert await collecting.firm.invoicing.close(other.tenant_id, NOW)
    await collecting.send()
    assert collecting.fake.of("invoice") == []
