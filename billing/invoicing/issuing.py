"""Issue a document: give it the next number of its series, name buyer and seller, sign it, write it."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from billing.audit.event import HOUSE
from billing.db.transaction import Connection
from billing.interval import zone_of
from billing.invoicing import repository
from billing.invoicing.agreements import repository as agreements
from billing.invoicing.document import DRAFT, InvoiceDocument
from billing.invoicing.invoice import Invoice, Issue, number_of, series_of
from billing.invoicing.party import NONCE_BYTES
from billing.invoicing.terms import DEFAULT, Terms
from billing.tenancy.tenant import Tenant
from engine.proof import signed
from engine.proof.ring import RingSigner


@dataclass(frozen=True, slots=True)
class Draft:
    """A document without number, date, parties and signature, and what the books keep beside it."""

    document: InvoiceDocument
    beside: Issue

    @classmethod
    def said(cls, fields: Mapping[str, Any], reference: str | None = None) -> "Draft":
        """A document of no period that says this."""
        document = InvoiceDocument(**fields)
        return cls(document, Issue(document, 0, "", reference=reference))

    def booked(self, transaction_id: UUID) -> "Draft":
        """The same with its ledger transaction."""
        return replace(self, beside=replace(self.beside, transaction_id=transaction_id))


async def issue(connection: Connection, signer: RingSigner, draft: Draft, at: datetime) -> Invoice:
    """Write it; the tenant's documents are locked by `repository.lock`.

    A number is taken in the transaction that writes the document: neither is there without the other.
    """
    document, tenant_id = draft.document, draft.document.tenant
    assert document.number == DRAFT, f"{document.number} has been issued"
    issued_at = datetime.fromtimestamp(signer.dated(int(at.timestamp())), UTC)
    terms = await terms_at(connection, tenant_id, document.zone, at)
    position = await repository.take_position(connection, tenant_id, document.document)
    buyer = await agreements.select_profile(connection, tenant_id)
    nonce = None if buyer is None else secrets.token_bytes(NONCE_BYTES)
    numbered = msgspec.structs.replace(
        document,
        number=number_of(terms.series or series_of(tenant_id), document.document, position),
        issued_at=issued_at,
        due_at=issued_at + timedelta(days=terms.payment_days) if document.due_cents else None,
        seller=await agreements.select_profile(connection, HOUSE),
        buyer=None if buyer is None or nonce is None else buyer.commitment(nonce),
    )
    text = signed.sign(signer.private, numbered.to_payload())
    written = replace(
        draft.beside, document=numbered, position=position, text=text, buyer=buyer, buyer_nonce=nonce
    )
    await repository.insert_document(connection, written)
    found = await repository.select_invoice(connection, numbered.number)
    assert found is not None, f"{numbered.number} was not written"
    return found


async def terms_at(connection: Connection, tenant_id: str, zone: str, at: datetime) -> Terms:
    """Those of the tenant's day."""
    day = at.astimezone(zone_of(zone)).date()
    in_force = [
        one.terms for one in await agreements.select_terms(connection, tenant_id) if one.effective_from <= day
    ]
    return in_force[-1] if in_force else DEFAULT


def undated(tenant: Tenant, at: datetime) -> dict[str, Any]:
    """What the document of one moment says of tenant and time, before it is issued."""
    return {
        "number": DRAFT,
        "tenant": tenant.id,
        "currency": tenant.currency,
        "zone": tenant.tz,
        "since": at,
        "until": at,
        "issued_at": at,
        "due_at": None,
        "seller": None,
        "buyer": None,
    }
