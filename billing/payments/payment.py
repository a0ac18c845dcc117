"""One of Stripe's objects as we keep it, and the movements of money that its state asks for.

    object    state                         money of the tenant's
    payment   succeeded                     comes in, once
    invoice   paid                          comes in, once, for what it invoices
    refund    failed, canceled              goes out and comes back
              any other                     goes out
    dispute   needs or under review, lost   goes out, debt may arise
              won                           goes out and comes back
              a warning, prevented          stays

A movement is a *leg*, counted from 1: with each leg of a refund or dispute the money goes out or comes back,
in turn, so that the legs moved say where it is. What comes back also went out, even where nobody told us so:
the legs depend on the state alone, and not on the order in which we heard of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from billing.ledger.credit import Grant, Movement, Refund
from billing.money import Femto
from billing.payments.fact import Kind, PaymentFact, newness
from billing.payments.minor import from_minor

ACTOR: Final = "stripe"

_RETURNED: Final = frozenset({"failed", "canceled", "won"})
_UNTOUCHED: Final = frozenset(
    {"warning_needs_response", "warning_under_review", "warning_closed", "prevented"}
)


@dataclass(frozen=True, slots=True)
class Payment:
    """The newest fact of an object, and how many legs were moved for it."""

    id: str
    tenant_id: str
    kind: Kind
    parent: str | None
    amount: Femto
    status: str
    reason: str | None
    order_id: str | None
    created_at: datetime
    fact_at: datetime
    fact: str
    legs: int = 0

    @property
    def failed(self) -> bool:
        """A payment that was tried and did not succeed; it may yet, if the tenant does something about it."""
        if self.kind != "payment" or self.status == "succeeded":
            return False
        return self.reason is not None or self.status in {"requires_action", "canceled"}

    @property
    def came_in(self) -> bool:
        """Money of a payment is in our books."""
        return self.kind == "payment" and self.legs > 0

    def learn(self, fact: PaymentFact, currency: str) -> "Payment":
        """The object after hearing a fact: the same if it is no newer. Amounts that were moved stay."""
        if fact.newness <= newness(self.kind, self.status, self.fact_at, self.fact):
            return self
        heard = first(fact, self.tenant_id, currency)
        amount = self.amount if self.legs else heard.amount
        return replace(heard, amount=amount, legs=self.legs, order_id=self.order_id or heard.order_id)

    def legs_due(self) -> Iterator[int]:
        """The legs to be moved now."""
        leg = self.legs
        while not self._settled(leg):
            leg += 1
            yield leg

    def leg(self, number: int) -> Movement:
        """The movement of one leg; its key names the object, or the order of a refund that is ours."""
        out = self.kind in {"refund", "dispute"} and number % 2 == 1
        ours = self.order_id if self.kind == "refund" else None
        key = f"stripe:{ours or self.id}:{number}"
        reason = f"Stripe {self.kind} {self.id}" + ("" if out or number == 1 else ", returned")
        if out:
            return Refund(self.amount, reason, ACTOR, idempotency_key=key, gone=True)
        return Grant(self.amount, "topped_up", reason, ACTOR, idempotency_key=key)

    def _settled(self, legs: int) -> bool:
        if self.amount == 0:
            return True
        if self.kind in {"payment", "invoice"}:
            return legs == (1 if self.status in {"succeeded", "paid"} else legs)
        if self.status in _UNTOUCHED:
            return legs % 2 == 0
        if self.status in _RETURNED:
            return legs % 2 == 0 and legs > 0
        return legs % 2 == 1


def first(fact: PaymentFact, tenant_id: str, currency: str) -> Payment:
    """An object that was not known; ``currency`` is the tenant's, and the fact's."""
    assert fact.currency == currency, f"{fact.id} is in {fact.currency}, {tenant_id} pays in {currency}"
    return Payment(
        id=fact.id,
        tenant_id=tenant_id,
        kind=fact.kind,
        parent=fact.parent,
        amount=from_minor(fact.minor, currency),
        status=fact.status,
        reason=fact.reason,
        order_id=None,
        created_at=fact.created_at,
        fact_at=fact.at,
        fact=fact.name,
    )
