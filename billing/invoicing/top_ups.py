"""Documents of money that was paid in: tax falls on it, and it becomes credit without it."""

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from billing.audit import service as audit
from billing.audit.event import Deed
from billing.db.transaction import Connection
from billing.errors import InvoiceConflict, TenantMissing
from billing.invoicing import repository
from billing.invoicing.invoice import Invoice
from billing.invoicing.issuing import Draft, issue, terms_at, undated
from billing.invoicing.lines import Line, tax_on, taxes, total_of
from billing.ledger import repository as ledger
from billing.ledger.entries import Account, Entry, Transaction
from billing.money import FEMTO_PER_CENT, Femto
from billing.request_id import RANDOM_BYTES, mint
from billing.tenancy.repository import select_tenant
from billing.tenancy.tenant import Tenant
from engine.proof.ring import RingSigner


@dataclass(frozen=True, slots=True)
class PaidIn:
    """Money for credit: ``net_cents`` of credit, and the tax on them. One ``reference`` has one document."""

    tenant_id: str
    net_cents: int
    reference: str
    at: datetime
    actor: str


async def tax_cents(connection: Connection, tenant_id: str, net_cents: int, at: datetime) -> int:
    """What is to be asked for beside the credit itself, by the terms of the day.

    Raises:
        TenantMissing: no tenant has this id.
    """
    tenant = await _tenant(connection, tenant_id)
    return tax_on(net_cents, (await terms_at(connection, tenant_id, tenant.tz, at)).tax_rate)


async def top_up_document(connection: Connection, signer: RingSigner, paid: PaidIn) -> Invoice:
    """Issue the document of a top-up, in the settler's transaction that grants its credit, before the audit.

    It books the tax: what was paid beside the credit, which is the credit's own to book.

    Returns:
        The document; of a reference that has one, that.

    Raises:
        TenantMissing: no tenant has this id.
        InvoiceConflict: the reference is of another amount.
    """
    tenant = await _tenant(connection, paid.tenant_id)
    await repository.lock(connection, tenant.id)
    known = await repository.select_by_reference(connection, tenant.id, paid.reference)
    if known is not None:
        if sum(line.cents for line in known.document.lines) != paid.net_cents:
            raise InvoiceConflict(known.number, f"{paid.reference} has paid in another amount")
        return known
    rate = (await terms_at(connection, tenant.id, tenant.tz, paid.at)).tax_rate
    lines = (Line("top_up", "credit", paid.net_cents, rate),)
    tax = taxes(lines)
    total = total_of(lines, tax)
    said: dict[str, Any] = {
        **undated(tenant, paid.at),
        "document": "top_up",
        "lines": lines,
        "tax": tax,
        "total_cents": total,
        "credits_applied_cents": total,
        "due_cents": 0,
    }
    draft = Draft.said(said, reference=paid.reference)
    due = Femto((total - paid.net_cents) * FEMTO_PER_CENT)
    if due:
        id_ = mint(paid.at, secrets.token_bytes(RANDOM_BYTES))
        entries = Entry(Account.CASH, Femto(-due)), Entry(Account.TAX_PAYABLE, due)
        reason = f"tax on the top-up {paid.reference}"
        transaction = Transaction(id_, tenant.id, "invoice", paid.at, entries, paid.actor, reason)
        await ledger.append(connection, [transaction], [])
        draft = draft.booked(id_)
    document = await issue(connection, signer, draft, paid.at)
    facts = {"kind": document.kind, "total_cents": document.total_cents}
    deed = Deed(tenant.id, paid.actor, "invoice.finalise", document.number, paid.at, after=facts)
    await audit.append(connection, deed)
    return document


async def _tenant(connection: Connection, tenant_id: str) -> Tenant:
    found = await select_tenant(connection, tenant_id)
    if found is None or found.id != tenant_id:
        raise TenantMissing(tenant_id)
    return found
