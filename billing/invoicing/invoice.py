"""A document as the books keep it: what it says, and how it is settled since."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec

from billing.invoicing.document import DocumentKind, InvoiceDocument
from billing.invoicing.party import Party
from billing.money import ZERO, Femto

State = Literal["finalised", "paid", "void", "uncollectible"]

STATES: Final[tuple[State, ...]] = ("finalised", "paid", "void", "uncollectible")
LETTERS: Final = {"invoice": "", "statement": "S", "top_up": "T", "credit_note": "C"}


@dataclass(frozen=True, slots=True)
class Invoice:
    """``text`` is the signed document. ``buyer`` is None where none was known, or it is erased.

    ``credited_cents`` is what credit notes took off what was due, not what they gave back of what was paid.
    """

    number: str
    tenant_id: str
    kind: DocumentKind
    currency: str
    since: datetime
    until: datetime
    issued_at: datetime
    due_at: datetime | None
    total_cents: int
    credits_applied_cents: int
    granted_cents: int
    due_cents: int
    text: str
    state: State
    paid_cents: int = 0
    credited_cents: int = 0
    settled_at: datetime | None = None
    credits: str | None = None
    reference: str | None = None
    buyer: Party | None = None
    buyer_nonce: bytes | None = None

    @property
    def open_cents(self) -> int:
        """What is still to be paid; nothing of one that is void or was given up."""
        left = self.due_cents - self.paid_cents - self.credited_cents
        return left if self.state == "finalised" else 0

    @property
    def document(self) -> InvoiceDocument:
        """What it says."""
        return InvoiceDocument.read(msgspec.json.decode(self.text)["payload"])


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of the period of a tenant that was closed last: where the next one goes on.

    ``cut`` is that of the head: what was recorded before it and rated before ``until`` has been covered.
    """

    number: str
    closes_at: int
    cut: datetime
    until: datetime
    carried_out: Femto


@dataclass(frozen=True, slots=True)
class Issue:
    """A document about to be written, and what the books keep beside it."""

    document: InvoiceDocument
    position: int
    text: str
    transaction_id: UUID | None = None
    cut: datetime | None = None
    granted_cents: int = 0
    corrected: Femto = ZERO
    on_account: Femto = ZERO
    buyer: Party | None = None
    buyer_nonce: bytes | None = None
    reference: str | None = None

    @property
    def state(self) -> State:
        """Where nothing is due it is paid."""
        return "finalised" if self.document.due_cents else "paid"


@dataclass(frozen=True, slots=True)
class Payment:
    """Money for an invoice. One ``reference`` pays an invoice once, whoever tells it how often.

    ``method`` is a word, such as ``transfer`` or ``stripe``.
    """

    number: str
    cents: int
    method: str
    reference: str
    at: datetime
    actor: str


def number_of(series: str, kind: DocumentKind, position: int) -> str:
    """Such as ``ACME-12``, or ``ACME-C3`` of a credit note."""
    return f"{series}-{LETTERS[kind]}{position}"


def series_of(tenant_id: str) -> str:
    """What begins the numbers of a tenant that has agreed on no series."""
    return tenant_id.rpartition("_")[2][:12].upper()
