"""The invoice document: what is signed, stored, exported and verified. Canonical JSON (RFC 8785)."""

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from msgspec import Meta

from billing.errors import BillingError, InvoiceInvalid
from billing.invoicing.derive import Basis, Derived
from billing.invoicing.lines import (
    Adjustment,
    Cache,
    Count,
    FemtoText,
    Line,
    Tax,
    UsageRow,
    total_of,
)
from billing.invoicing.party import Party
from billing.invoicing.period import Period
from billing.invoicing.terms import Coupon, Segment
from billing.money import Femto
from engine.proof import signed
from engine.proof.ring import DeploymentRing

KIND: Final = "kvitto.invoice.v1"
DRAFT: Final = "DRAFT"

DocumentKind = Literal["invoice", "statement", "top_up", "credit_note"]
Instant = Annotated[datetime, Meta(tz=True)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
Number = Annotated[str, Meta(pattern=r"^[A-Z0-9]{1,40}(-[A-Z]?[0-9]{1,18})?$")]


class Previous(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The period's document before: what it covered is not covered again, what it left over is carried in."""

    number: Number
    closes_at: Count
    until: Instant
    carried_out_femto: FemtoText


class LogPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where in the receipt log the document ends: at the head of ``closes_at`` leaves with this root.

    It covers the ``receipts`` of the tenant with a lower leaf index that were rated before its end, but for
    those that the document before covered by the same rule.
    """

    closes_at: Count
    root: Digest
    receipts: Count
    previous: Previous | None


class PriceDigest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A price row that rated something, and the SHA-256 of its canonical JSON."""

    id: str
    sha256: Digest


class InvoiceDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A document of any kind. Invoices and statements are of a period, derived by `billing.invoicing.derive`.

    ``total_cents`` is the sum of the lines and their tax. A credit note gives back what its lines say, of the
    document ``credits``. ``buyer`` commits to the profile of the tenant (`Party.commitment`).
    """

    kind: Literal["kvitto.invoice.v1"] = KIND
    document: DocumentKind
    number: Number
    tenant: str
    currency: str
    zone: str
    since: Instant
    until: Instant
    issued_at: Instant
    due_at: Instant | None
    seller: Party | None
    buyer: Digest | None
    lines: tuple[Line, ...]
    tax: tuple[Tax, ...]
    total_cents: Count
    credits_applied_cents: Count
    due_cents: Count
    log: LogPlace | None = None
    prices: tuple[PriceDigest, ...] = ()
    usage: tuple[UsageRow, ...] = ()
    carried_in_femto: FemtoText = "0"
    carried_out_femto: FemtoText = "0"
    adjustments: tuple[Adjustment, ...] = ()
    terms: tuple[Segment, ...] = ()
    coupons: tuple[Coupon, ...] = ()
    cache: Cache | None = None
    credits: Number | None = None
    reason: str | None = None

    @property
    def period(self) -> Period:
        """What it is about."""
        return Period(self.zone, self.since.astimezone(UTC), self.until.astimezone(UTC))

    @property
    def carried_in(self) -> Femto:
        """Less than a cent of usage that the document before has left."""
        return Femto(int(self.carried_in_femto))

    @property
    def carried_out(self) -> Femto:
        """Likewise, left by this one."""
        return Femto(int(self.carried_out_femto))

    @property
    def basis(self) -> Basis:
        """What it says that it was derived from."""
        assert self.document in {"invoice", "statement"}, f"a {self.document} is of no period"
        return Basis(
            kind="invoice" if self.document == "invoice" else "statement",
            usage=self.usage,
            carried_in=self.carried_in,
            adjustments=self.adjustments,
            segments=self.terms,
            coupons=self.coupons,
            credit_cents=self.credits_applied_cents,
        )

    def to_payload(self) -> dict[str, Any]:
        """What is signed."""
        payload: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return payload

    @classmethod
    def read(cls, payload: dict[str, Any]) -> Self:
        """Read what `to_payload` wrote, to the letter.

        Raises:
            InvoiceInvalid: anything else, or sums that are not those of its lines.
        """
        try:
            document = msgspec.convert(payload, cls)
            document.check()
        except (msgspec.ValidationError, BillingError, ValueError) as error:
            raise InvoiceInvalid(str(error)) from error
        if document.to_payload() != payload:
            raise InvoiceInvalid("it is written in another way than documents are")
        return document

    def check(self) -> None:
        """Raise InvoiceInvalid where parts that every kind has contradict one another."""
        if self.until < self.since:
            raise InvoiceInvalid("it ends before it begins")
        if total_of(self.lines, self.tax) != self.total_cents:
            raise InvoiceInvalid(f"total_cents is {self.total_cents}, lines and tax add up to another sum")
        if self.total_cents - self.credits_applied_cents != self.due_cents:
            raise InvoiceInvalid(f"due_cents is {self.due_cents}, not the total less credits applied")
        if (self.document in {"invoice", "statement"}) != (self.log is not None and bool(self.terms)):
            raise InvoiceInvalid(f"a {self.document} is of a period of the log with its terms, or of none")
        if (self.document == "credit_note") != (self.credits is not None):
            raise InvoiceInvalid("a credit note names what it credits")

    @classmethod
    def verify(cls, text: str, ring: DeploymentRing) -> Self:
        """Read a document that the deployment signed with the key that it had when it was issued.

        Raises:
            SignatureInvalid: not signed by a key of the ring, or one that was not in use.
            PayloadInvalid: not canonical JSON.
            InvoiceInvalid: signed, but no invoice.
        """
        payload, key = ring.verify(text)
        signed.canonical_value(text.encode())
        document = cls.read(payload)
        key.check(int(document.issued_at.timestamp()))
        return document


def with_derived(document: InvoiceDocument, derived: Derived) -> InvoiceDocument:
    """The same document with what was derived."""
    return msgspec.structs.replace(
        document,
        lines=derived.lines,
        tax=derived.tax,
        carried_out_femto=str(derived.carried_out),
        total_cents=derived.total_cents,
        credits_applied_cents=derived.credits_applied_cents,
        due_cents=derived.due_cents,
    )
