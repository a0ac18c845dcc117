"""What Stripe says of one of its objects, at one instant: read from an event or from an answer.

Of two facts of one object the newer counts, whichever came first: final states are newer than others, then
Stripe's clock decides, then how far a state is along, then the name of the fact. That is a total order: an
object's state depends on what was said of it, and on nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, Literal

import msgspec

Kind = Literal["payment", "refund", "dispute", "invoice"]

ORDER: Final = "kvitto_order"  # of metadata: the order of ours that an object answers
PURPOSE: Final = "kvitto_purpose"  # of metadata: what a payment is for
NUMBER: Final = "kvitto_invoice"  # of metadata: our number of an invoice
TOP_UP: Final = "top_up"

_FINAL: Final[Mapping[Kind, frozenset[str]]] = MappingProxyType(
    {
        "payment": frozenset({"succeeded", "canceled"}),
        "refund": frozenset({"failed", "canceled"}),
        "dispute": frozenset({"won", "lost", "warning_closed", "prevented"}),
        "invoice": frozenset({"paid", "void"}),
    }
)
# Of states that begin in the same second, the later one in this list is the newer.
_ALONG: Final = (
    *(
        "requires_payment_method",
        "requires_confirmation",
        "requires_action",
        "processing",
        "requires_capture",
    ),
    *("warning_needs_response", "warning_under_review", "needs_response", "under_review"),
    *("appeal_needs_response", "appeal_under_review", "draft", "open", "uncollectible", "void", "pending"),
    *("warning_closed", "prevented", "canceled", "failed", "lost", "won", "paid", "succeeded"),
)
_KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {"payment_intent": "payment", "refund": "refund", "dispute": "dispute", "invoice": "invoice"}
)


class Reference(msgspec.Struct):
    """An object that is expanded where its id would do."""

    id: str


class _Failure(msgspec.Struct):
    code: str | None = None
    decline_code: str | None = None


class _InvoiceSettings(msgspec.Struct):
    default_payment_method: str | Reference | None = None


class StripeObject(msgspec.Struct):
    """The fields of Stripe's objects that we read; which of them one has depends on ``object``."""

    id: str
    object: str
    created: int = 0
    amount: int = 0
    amount_received: int = 0
    amount_paid: int = 0
    currency: str | None = None
    status: str | None = None
    customer: str | Reference | None = None
    payment_intent: str | Reference | None = None
    metadata: dict[str, str] | None = None
    last_payment_error: _Failure | None = None
    failure_reason: str | None = None
    reason: str | None = None
    invoice_settings: _InvoiceSettings | None = None
    total: int = 0


@dataclass(frozen=True, slots=True)
class PaymentFact:
    """A payment, a refund, a dispute or an invoice of Stripe's; ``minor`` is in its smallest unit."""

    id: str
    kind: Kind
    minor: int
    currency: str
    status: str
    created_at: datetime
    customer: str | None
    parent: str | None
    reason: str | None
    metadata: Mapping[str, str]
    at: datetime
    name: str

    @property
    def newness(self) -> tuple[bool, datetime, int, str]:
        """Orders the facts of one object."""
        return newness(self.kind, self.status, self.at, self.name)


@dataclass(frozen=True, slots=True)
class CustomerFact:
    """A customer of Stripe's and the method that it pays by when nobody chooses."""

    id: str
    method: str | None
    deleted: bool
    at: datetime
    name: str


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that moves no money of ours, and why it is not read."""

    id: str
    reason: str


Fact = PaymentFact | CustomerFact | Unread


def newness(kind: Kind, status: str, at: datetime, name: str) -> tuple[bool, datetime, int, str]:
    """Orders the facts of one object of this kind."""
    along = _ALONG.index(status) if status in _ALONG else -1
    return status in _FINAL[kind], at, along, name


def fact_of(raw: object, at: datetime, name: str) -> Fact:
    """Read one of Stripe's objects.

    Args:
        raw: as JSON decodes it.
        at: the instant of which it is true, by Stripe's clock.
        name: the event that told it; ``answer`` of a call.

    Raises:
        msgspec.ValidationError: an object of a kind that we read has not its shape.
    """
    said = msgspec.convert(raw, _Named)
    if said.object not in {*_KINDS, "customer"}:
        return Unread(said.id, f"a {said.object} moves no money: its payments, refunds and disputes say it")
    found = msgspec.convert(raw, StripeObject)
    if found.object == "customer":
        settings = found.invoice_settings or _InvoiceSettings()
        deleted = name.partition(":")[0] == "customer.deleted"
        return CustomerFact(found.id, _id(settings.default_payment_method), deleted, at, name)
    return _payment(found, _KINDS[found.object], at, name)


class _Named(msgspec.Struct):
    id: str
    object: str


def _payment(found: StripeObject, kind: Kind, at: datetime, name: str) -> Fact:
    failure = found.last_payment_error or _Failure()
    minor = found.amount
    if kind == "payment" and found.status == "succeeded":
        minor = found.amount_received
    elif kind == "invoice":
        minor = found.amount_paid if found.status == "paid" else found.total
    if not (found.currency and found.status and minor >= 0):
        return Unread(found.id, f"a {kind} without currency, status or amount")
    return PaymentFact(
        id=found.id,
        kind=kind,
        minor=minor,
        currency=found.currency.upper(),
        status=found.status,
        created_at=datetime.fromtimestamp(found.created, UTC),
        customer=_id(found.customer),
        parent=_id(found.payment_intent) if kind in {"refund", "dispute"} else None,
        reason=failure.decline_code or failure.code or found.failure_reason or found.reason,
        metadata=found.metadata or {},
        at=at,
        name=name,
    )


def _id(reference: str | Reference | None) -> str | None:
    return reference.id if isinstance(reference, Reference) else reference
