"""Invoices of ours that Stripe collects: told of when they are issued, booked when they are paid."""

import logging
from datetime import datetime
from typing import Final

from billing.db.transaction import Connection
from billing.errors import AmountInvalid
from billing.invoicing import repository as documents
from billing.invoicing.invoice import Invoice
from billing.invoicing.invoice import Payment as InvoicePayment
from billing.invoicing.settling import locked, mark_paid
from billing.ledger import posting
from billing.ledger.balance import BalanceVersion
from billing.ledger.credit import Grant
from billing.money import FEMTO_PER_CENT, Femto
from billing.payments import repository
from billing.payments.minor import cents_to_minor
from billing.payments.order import InvoiceLine, InvoicePush
from billing.payments.outbox import put
from billing.payments.payment import ACTOR

LINES_MAX: Final = 200  # Stripe takes 250; tax and the credit that was applied are lines too

_log: Final = logging.getLogger(__name__)


class StripeInvoices:
    """Implements `billing.invoicing.service.Collector` and `billing.payments.applying.InvoiceBook`.

    Locks: a tenant's documents come before its balance, and behind a payment of Stripe's.
    """

    async def collect(self, connection: Connection, invoice: Invoice, at: datetime) -> None:
        """Have Stripe collect an invoice with something due, of a tenant that it knows; others transfer."""
        customer = await repository.select_customer(connection, tenant_id=invoice.tenant_id)
        if customer is None or customer.deleted is not None:
            return
        push = _push(invoice)
        try:
            for cents in (*(line.cents for line in push.lines), push.tax_cents, push.total_cents):
                cents_to_minor(cents, push.currency)
        except AmountInvalid as error:
            _log.warning("Stripe cannot collect %s: %s", invoice.number, error)
            return
        await put(connection, invoice.tenant_id, push.number, push, at)

    async def paid(
        self, connection: Connection, number: str, amount: Femto, reference: str, at: datetime
    ) -> BalanceVersion | None:
        """Book what Stripe has collected; what is more than is open by now becomes the tenant's credit."""
        invoice = await locked(connection, number)
        before = await documents.select_payments(connection, number)
        if any(known.reference == reference for known in before):
            return None
        balance = None
        cents = min(amount // FEMTO_PER_CENT, invoice.open_cents)
        if cents:
            payment = InvoicePayment(number, cents, ACTOR, reference, at, ACTOR)
            balance = await mark_paid(connection, payment)
        rest = Femto(amount - cents * FEMTO_PER_CENT)
        if rest:
            reason = f"Stripe invoice {reference}: more than was open of {number}"
            grant = Grant(rest, "topped_up", reason, ACTOR, idempotency_key=f"stripe:{reference}:1")
            balance = (await posting.post(connection, invoice.tenant_id, grant, at)).balance
        return balance


def _push(invoice: Invoice) -> InvoicePush:
    """What is due of it: lines that are not zero, tax, and the credit that it took."""
    document = invoice.document
    assert invoice.due_at is not None, f"nothing is due of {invoice.number}"
    lines = [InvoiceLine(line.text, line.cents) for line in document.lines if line.cents]
    if len(lines) > LINES_MAX:
        lines = [InvoiceLine(f"as invoice {invoice.number} says", sum(line.cents for line in lines))]
    if invoice.credits_applied_cents:
        lines.append(InvoiceLine("Paid from credit", -invoice.credits_applied_cents))
    return InvoicePush(
        number=invoice.number,
        tenant_id=invoice.tenant_id,
        currency=invoice.currency,
        lines=tuple(lines),
        tax_cents=sum(tax.tax_cents for tax in document.tax),
        total_cents=invoice.due_cents,
        due_at=invoice.due_at,
    )
