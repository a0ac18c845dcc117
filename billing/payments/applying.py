"""What a fact of Stripe's does to our books, whichever way it came: by a webhook, or as an answer.

Locks are taken in one order: the customer, the payment, the tenant's documents, its balance, its audit chain.
All that is said of one payment is heard under that payment's lock, also what is said before it is known.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, Protocol

from billing.db.transaction import Connection
from billing.ledger import posting
from billing.ledger import repository as ledger
from billing.ledger.balance import BalanceVersion
from billing.money import Femto
from billing.payments import repository
from billing.payments.declined import Declined, decline
from billing.payments.event import event_of
from billing.payments.fact import NUMBER, ORDER, PURPOSE, TOP_UP, CustomerFact, Fact, PaymentFact, Unread
from billing.payments.order import InvoicePush, RefundOrder, TopUpOrder
from billing.payments.payment import Payment, first


class InvoiceBook(Protocol):
    """Where an invoice of ours is booked as paid, in the settler's transaction that is open."""

    async def paid(
        self, connection: Connection, number: str, amount: Femto, reference: str, at: datetime
    ) -> BalanceVersion | None:
        """Book money for an invoice, once for each ``reference``, the id of Stripe's invoice."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a fact; ``waits_for`` names the object that must become known first."""

    name: Literal["applied", "ignored", "waiting"]
    tenant_id: str | None = None
    reason: str | None = None
    waits_for: str | None = None
    balances: list[BalanceVersion] = field(default_factory=list)

    def row(self, at: datetime) -> dict[str, Any]:
        """Of the event in the inbox."""
        return {
            "tenant_id": self.tenant_id,
            "outcome": self.name,
            "reason": self.reason,
            "waits_for": self.waits_for,
            "applied_at": at if self.name == "applied" else None,
        }


async def apply(
    connection: Connection, fact: Fact, at: datetime, invoices: InvoiceBook | None = None
) -> Outcome:
    """Learn a fact and move the money it speaks of, in the settler's transaction that is open.

    Then do the same with what waits for its object to become known. Nothing is moved twice, and a fact may
    come as often as it likes. Without ``invoices`` an invoice's state is kept, and its money moved later.
    """
    outcome = await _apply(connection, fact, at, invoices)
    if outcome.name != "applied" or not isinstance(fact, PaymentFact) or fact.parent is not None:
        return outcome
    balances = outcome.balances + await awaken(connection, fact.id, at, invoices)
    return replace(outcome, balances=balances[-1:])


async def awaken(
    connection: Connection, object_id: str, at: datetime, invoices: InvoiceBook | None = None
) -> list[BalanceVersion]:
    """Apply the events that wait for an object, which is known now and locked.

    Returns:
        What its tenant can spend since; empty if no money moved.
    """
    balances = []
    for event_id, body in await repository.select_waiting(connection, object_id):
        outcome = await apply(connection, event_of(body).fact, at, invoices)
        await repository.update_event(connection, event_id, outcome.row(at))
        balances += outcome.balances
    return balances[-1:]


async def _apply(connection: Connection, fact: Fact, at: datetime, invoices: InvoiceBook | None) -> Outcome:
    match fact:
        case Unread():
            return Outcome("ignored", reason=fact.reason)
        case CustomerFact():
            return await _apply_customer(connection, fact)
        case PaymentFact(parent=None, kind="payment" | "invoice"):
            return await _apply_payment(connection, fact, at, invoices)
        case PaymentFact(parent=None):
            return Outcome("ignored", reason=f"the {fact.kind} names no payment")
        case PaymentFact():
            return await _apply_reversal(connection, fact, at)


async def _apply_customer(connection: Connection, fact: CustomerFact) -> Outcome:
    await repository.lock(connection, fact.id)
    customer = await repository.select_customer(connection, customer_id=fact.id)
    if customer is None:
        return _waiting(fact.id)
    await repository.update_customer(connection, fact)
    return Outcome("applied", customer.tenant_id)


async def _apply_payment(
    connection: Connection, fact: PaymentFact, at: datetime, invoices: InvoiceBook | None
) -> Outcome:
    if fact.customer is None:
        return Outcome("ignored", reason=f"the {fact.kind} names no customer")
    if fact.kind == "payment" and fact.metadata.get(PURPOSE) != TOP_UP:
        return Outcome("ignored", reason=f"the payment is no top-up: its metadata has no {PURPOSE}={TOP_UP}")
    if fact.kind == "invoice" and NUMBER not in fact.metadata:
        return Outcome("ignored", reason=f"the invoice is not ours: its metadata has no {NUMBER}")
    await repository.lock(connection, fact.customer)
    customer = await repository.select_customer(connection, customer_id=fact.customer)
    if customer is None:
        return _waiting(fact.customer)
    await repository.lock(connection, fact.id)
    outcome = await _learn(connection, fact, customer.tenant_id, customer.currency, at)
    if fact.kind == "invoice" and invoices is not None:
        return replace(outcome, balances=await _book_invoice(connection, fact.id, at, invoices))
    return outcome


async def _apply_reversal(connection: Connection, fact: PaymentFact, at: datetime) -> Outcome:
    assert fact.parent is not None
    await repository.lock(connection, fact.parent)
    root = await repository.select_payment(connection, fact.parent)
    if root is None:
        return _waiting(fact.parent)
    customer = await repository.select_customer(connection, tenant_id=root.tenant_id)
    assert customer is not None, f"{root.id} is a payment of {root.tenant_id}, whom Stripe does not know"
    return await _learn(connection, fact, root.tenant_id, customer.currency, at)


def _waiting(object_id: str) -> Outcome:
    return Outcome("waiting", reason=f"{object_id} is not known", waits_for=object_id)


async def _learn(
    connection: Connection, fact: PaymentFact, tenant_id: str, currency: str, at: datetime
) -> Outcome:
    """Keep the newer fact of an object that is locked, and move what it is now due."""
    if fact.currency != currency:
        return Outcome("ignored", tenant_id, f"it is in {fact.currency}, the tenant pays in {currency}")
    before = await repository.select_payment(connection, fact.id)
    if before is None:
        known = first(fact, tenant_id, currency)
        known = replace(known, order_id=await _order_answered(connection, fact, known))
    else:
        known = before.learn(fact, currency)
    if known != before:
        await repository.upsert_payment(connection, known)
    if known.order_id is not None and known.failed and not (before and before.failed):
        code = known.reason or known.status
        declined = Declined(known.order_id, tenant_id, known.amount, currency, code)
        await decline(connection, declined, at)
    return Outcome("applied", tenant_id, balances=await _move(connection, known, at))


async def _order_answered(connection: Connection, fact: PaymentFact, known: Payment) -> str | None:
    """The order of ours that made an object, which says so in its metadata; one object an order."""
    order_id = fact.metadata.get(ORDER)
    order = None if order_id is None else await repository.select_order(connection, order_id)
    if order is None or order.tenant_id != known.tenant_id or order.object_id not in {None, fact.id}:
        return None
    match order.errand:
        case TopUpOrder() if fact.kind == "payment":
            pass
        case InvoicePush() if fact.kind == "invoice":
            pass
        case RefundOrder(payment, minor) if (fact.kind, fact.parent, fact.minor) == (
            "refund",
            payment,
            minor,
        ):
            pass
        case _:
            return None
    await repository.update_order(connection, replace(order, object_id=fact.id))
    return order.id


async def _move(connection: Connection, known: Payment, at: datetime) -> list[BalanceVersion]:
    """Move the legs that are due of a payment and of its reversals: nothing goes out that never came in."""
    root = known
    if known.parent is not None:
        found = await repository.select_payment(connection, known.parent)
        assert found is not None
        root = found
    moved = await _move_legs(connection, root, at)
    if moved and root.kind == "payment":
        await ledger.update_declines(connection, root.tenant_id, None)
    if moved or root.came_in:
        for child in await repository.select_children(connection, root.id):
            moved += await _move_legs(connection, child, at)
    return moved[-1:]


async def _book_invoice(
    connection: Connection, invoice_id: str, at: datetime, invoices: InvoiceBook
) -> list[BalanceVersion]:
    known = await repository.select_payment(connection, invoice_id)
    if known is None or known.order_id is None or not list(known.legs_due()):
        return []
    order = await repository.select_order(connection, known.order_id)
    assert order is not None
    assert isinstance(order.errand, InvoicePush)
    balance = await invoices.paid(connection, order.errand.number, known.amount, known.id, at)
    await repository.upsert_payment(connection, replace(known, legs=1))
    return [] if balance is None else [balance]


async def _move_legs(connection: Connection, known: Payment, at: datetime) -> list[BalanceVersion]:
    due = list(known.legs_due())
    if not due or known.kind == "invoice":
        return []
    await repository.upsert_payment(connection, replace(known, legs=due[-1]))
    return [
        (await posting.post(connection, known.tenant_id, known.leg(number), at)).balance for number in due
    ]
