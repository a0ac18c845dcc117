"""What Stripe is to be told, as kept until it has answered. Asked for again, an order is the same one."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Final, Literal

import msgspec

from billing.ledger.auto_top_up import KEY_PREFIX
from billing.money import FEMTO_PER_CENT, Femto

OrderKind = Literal["top_up", "refund", "invoice", "meter"]

PAUSE_FIRST: Final = timedelta(seconds=30)  # longer than a call may take: meanwhile an order is nobody else's
PAUSE_DOUBLINGS_MAX: Final = 7
# Stripe forgets idempotency keys after a day: who repeats a call later looks first what became of it.
KEYS_KEPT: Final = timedelta(hours=23)
METER_AGE_MAX: Final = timedelta(days=35)


class TopUpOrder(msgspec.Struct, frozen=True, tag="top_up"):
    """Charge the tenant's default payment method, off session."""

    kind: ClassVar[OrderKind] = "top_up"
    minor: int
    currency: str


class RefundOrder(msgspec.Struct, frozen=True, tag="refund"):
    """Pay back a part of a payment; the ledger has it already."""

    kind: ClassVar[OrderKind] = "refund"
    payment: str
    minor: int
    currency: str


class InvoiceLine(msgspec.Struct, frozen=True):
    """A line of an invoice, before tax."""

    description: str
    cents: int


class InvoicePush(msgspec.Struct, frozen=True, tag="invoice"):
    """A finalised invoice of ours: Stripe collects it. Lines and tax add up to the total."""

    kind: ClassVar[OrderKind] = "invoice"
    number: str
    tenant_id: str
    currency: str
    lines: tuple[InvoiceLine, ...]
    tax_cents: int
    total_cents: int
    due_at: datetime

    def __post_init__(self) -> None:
        lines = sum(line.cents for line in self.lines)
        assert lines + self.tax_cents == self.total_cents, f"lines of invoice {self.number} sum to {lines}"

    @property
    def total(self) -> Femto:
        """What is to be paid."""
        return Femto(self.total_cents * FEMTO_PER_CENT)


class MeterOrder(msgspec.Struct, frozen=True, tag="meter"):
    """Tokens of one bucket that a tenant used in one hour."""

    kind: ClassVar[OrderKind] = "meter"
    bucket: str
    hour: datetime
    tokens: int


Errand = TopUpOrder | RefundOrder | InvoicePush | MeterOrder


@dataclass(frozen=True, slots=True)
class Mark:
    """What an object of Stripe's carries that an order makes, and the idempotency key of making it.

    ``spent`` keys answer with a failure of Stripe's, whenever they are used again.
    """

    order_id: str
    spent: int = 0

    def key(self, step: str = "") -> str:
        """The idempotency key of one step of the order."""
        return f"kvitto-{self.order_id}{step}" + (f"~{self.spent}" if self.spent else "")


@dataclass(frozen=True, slots=True)
class Order:
    """An errand with what became of it; ``due_at`` None: nothing is left to do."""

    id: str
    tenant_id: str
    errand: Errand
    created_at: datetime
    attempts: int = 0
    first_sent_at: datetime | None = None
    due_at: datetime | None = None
    outcome: Literal["open", "done", "failed"] = "open"
    object_id: str | None = None
    reason: str | None = None
    spent: int = 0

    @property
    def mark(self) -> Mark:
        """Under which Stripe is told now."""
        return Mark(self.id, self.spent)

    def pause(self) -> timedelta:
        """How long after this attempt the next one is due: doubled each time, up to an hour."""
        return PAUSE_FIRST * (1 << min(max(self.attempts - 1, 0), PAUSE_DOUBLINGS_MAX))

    def forgotten(self, at: datetime) -> bool:
        """Stripe may not know the idempotency key of the first attempt any more."""
        return self.first_sent_at is not None and at - self.first_sent_at > KEYS_KEPT

    def must_look(self, at: datetime) -> bool:
        """The idempotency key alone does not tell any more whether an attempt has had its effect."""
        return self.spent > 0 or self.forgotten(at)


def is_automatic(order_id: str | None, tenant_id: str) -> bool:
    """Whether an order is one of a tenant's rule, and not of somebody who asked."""
    return order_id is not None and order_id.startswith(f"{TopUpOrder.kind}-{tenant_id}-{KEY_PREFIX}")


def order_of(tenant_id: str, key: str, errand: Errand, at: datetime) -> Order:
    """A new order, due at once. ``key`` names it among the tenant's of its kind, whoever asks how often."""
    return Order(f"{errand.kind}-{tenant_id}-{key}", tenant_id, errand, at, due_at=at)
