"""How documents are settled: paid, credited, void, given up. What they say is changed by nobody.

A document is void when a credit note has given back all of it and nothing was paid in money. What a credit
note gives back is first taken off what is open; what was paid, or applied as credit, becomes credit again.
Sums below zero do not occur.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from billing.audit import service as audit
from billing.audit.event import Deed
from billing.db.access import SETTLER, reading
from billing.db.transaction import Connection, Database
from billing.errors import InvoiceConflict, InvoiceMissing, ReasonMissing
from billing.invoicing import repository
from billing.invoicing.closing import entries_of
from billing.invoicing.crediting import credited_lines
from billing.invoicing.invoice import Invoice, Payment
from billing.invoicing.issuing import Draft, issue, undated
from billing.invoicing.lines import total_of
from billing.ledger import repository as ledger
from billing.ledger.balance import BalanceVersion
from billing.ledger.credit import Grant
from billing.ledger.entries import Account, Entry, Kind, Transaction
from billing.ledger.wallet import GivenBack, Wallet
from billing.money import FEMTO_PER_CENT, Femto
from billing.request_id import RANDOM_BYTES, mint
from billing.tenancy.repository import select_tenant
from engine.proof.ring import RingSigner


@dataclass(frozen=True, slots=True)
class Deliberate:
    """Who does something to a document, why and when. Raises ReasonMissing where that is not said."""

    reason: str
    actor: str
    at: datetime

    def __post_init__(self) -> None:
        if not (self.reason.strip() and self.actor.strip()):
            raise ReasonMissing


async def mark_paid(connection: Connection, payment: Payment) -> BalanceVersion | None:
    """Book money for an invoice, in a settler's transaction that has locked no balance yet.

    Returns:
        What the tenant can spend now; None: this payment was booked before, and nothing moved.

    Raises:
        InvoiceMissing: there is none.
        InvoiceConflict: it is not open by so much, or the reference is of a payment of another amount.
    """
    invoice = await locked(connection, payment.number)
    for known in await repository.select_payments(connection, payment.number):
        if known.reference == payment.reference:
            if known.cents != payment.cents:
                raise InvoiceConflict(invoice.number, f"{payment.reference} has paid another amount")
            return None
    if payment.cents <= 0 or payment.cents > invoice.open_cents:
        raise InvoiceConflict(invoice.number, f"{invoice.open_cents} cents are open, not {payment.cents}")
    wallet = await _wallet(connection, invoice.tenant_id)
    entries = wallet.settle(_femto(payment.cents), Account.CASH)
    why = Deliberate(f"payment of {invoice.number}, {payment.reference}", payment.actor, payment.at)
    transaction = _transaction("payment", wallet, entries, why)
    await ledger.append(connection, [transaction], [wallet])
    await ledger.rearm(connection, wallet.balance)
    await repository.insert_payment(connection, payment, invoice.tenant_id, transaction.id)
    paid = replace(invoice, paid_cents=invoice.paid_cents + payment.cents)
    await repository.update_settlement(connection, _settled(paid, payment.at))
    facts = {"cents": payment.cents, "method": payment.method}
    await audit.append(connection, _deed(invoice, "invoice.pay", why, facts))
    return wallet.balance


class Settling:
    """What people do to documents that were issued."""

    def __init__(self, database: Database, signer: RingSigner | None = None) -> None:
        self._database = database
        self._signer = signer

    async def pay(self, payment: Payment) -> BalanceVersion | None:
        """See `mark_paid`."""
        async with self._database.transaction(SETTLER) as connection:
            return await mark_paid(connection, payment)

    async def payments(self, number: str, tenant_id: str | None = None) -> list[Payment]:
        """What was paid for a document."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await repository.select_payments(connection, number)

    async def give_up(self, number: str, why: Deliberate) -> BalanceVersion:
        """Write off what is open: the invoice is uncollectible. Its tax stays payable, to be claimed back.

        Raises:
            InvoiceMissing: there is none.
            InvoiceConflict: nothing is open.
        """
        async with self._database.transaction(SETTLER) as connection:
            invoice = await locked(connection, number)
            if not invoice.open_cents:
                raise InvoiceConflict(number, "nothing is open")
            wallet = await _wallet(connection, invoice.tenant_id)
            entries = wallet.settle(_femto(invoice.open_cents), Account.BAD_DEBT)
            await ledger.append(connection, [_transaction("uncollectible", wallet, entries, why)], [wallet])
            given_up = replace(invoice, state="uncollectible", settled_at=why.at)
            await repository.update_settlement(connection, given_up)
            facts = {"cents": invoice.open_cents}
            await audit.append(connection, _deed(invoice, "invoice.uncollectible", why, facts))
        return wallet.balance

    async def void(self, number: str, why: Deliberate) -> tuple[Invoice, BalanceVersion]:
        """Give back all of an invoice for which nothing was paid, by a credit note; its usage stays invoiced.

        Raises:
            InvoiceMissing: there is none.
            InvoiceConflict: something was paid, or credited before: then a credit note has to say how much.
        """
        return await self.credit(number, None, why, unpaid=True)

    async def credit(
        self, number: str, asked: Mapping[int, int] | None, why: Deliberate, *, unpaid: bool = False
    ) -> tuple[Invoice, BalanceVersion]:
        """Issue a credit note on an invoice, or on the document of a top-up, of which it gives back the tax.

        Args:
            number: of the document.
            asked: cents by position of the line, before tax; None: all that is left of it.
            why: for the books, and on the note.
            unpaid: refuse where anything was paid or credited before.

        Raises:
            InvoiceMissing: there is none.
            InvoiceConflict: more than is left, or a document of another kind or state.
        """
        assert self._signer is not None, "issuing takes a signer"
        async with self._database.transaction(SETTLER) as connection:
            invoice = await locked(connection, number)
            notes = await repository.select_notes(connection, number)
            _check_creditable(invoice, notes, unpaid=unpaid)
            draft, gross = await _note(connection, invoice, notes, asked, why)
            wallet = await _wallet(connection, invoice.tenant_id)
            open_cents = 0 if invoice.kind == "top_up" else min(gross, invoice.open_cents)
            transactions = _give_back(wallet, invoice, notes, (draft, gross, open_cents), why)
            await ledger.append(connection, transactions, [wallet])
            await ledger.rearm(connection, wallet.balance)
            note = await issue(connection, self._signer, draft.booked(transactions[0].id), why.at)
            credited = replace(invoice, credited_cents=invoice.credited_cents + open_cents)
            whole = sum(each.total_cents for each in notes) + gross == invoice.total_cents
            if whole and not invoice.paid_cents and invoice.kind == "invoice":
                credited = replace(credited, state="void", settled_at=why.at)
            await repository.update_settlement(connection, _settled(credited, why.at))
            facts = {"credits": number, "cents": gross, "off_due_cents": open_cents}
            await audit.append(connection, _deed(note, "invoice.credit", why, facts))
        return note, wallet.balance


def _check_creditable(invoice: Invoice, notes: list[Invoice], *, unpaid: bool) -> None:
    if invoice.kind not in {"invoice", "top_up"}:
        raise InvoiceConflict(invoice.number, f"a {invoice.kind.replace('_', ' ')} is not credited")
    if invoice.state in {"void", "uncollectible"}:
        raise InvoiceConflict(invoice.number, f"it is {invoice.state}")
    if unpaid and (invoice.paid_cents or notes or invoice.kind == "top_up"):
        raise InvoiceConflict(invoice.number, "something was paid or credited: issue a credit note")


async def _note(
    connection: Connection,
    invoice: Invoice,
    notes: list[Invoice],
    asked: Mapping[int, int] | None,
    why: Deliberate,
) -> tuple[Draft, int]:
    """The credit note, and its cents."""
    credited = invoice.document
    lines, tax = credited_lines(credited, [each.document for each in notes], asked)
    gross = total_of(lines, tax)
    tenant = await select_tenant(connection, invoice.tenant_id)
    assert tenant is not None
    said: dict[str, Any] = {
        **undated(tenant, why.at),
        "since": credited.since,
        "until": credited.until,
        "document": "credit_note",
        "lines": lines,
        "tax": tax,
        "total_cents": gross,
        "credits_applied_cents": gross,
        "due_cents": 0,
        "credits": invoice.number,
        "reason": why.reason,
    }
    return Draft.said(said), gross


def _give_back(
    wallet: Wallet, invoice: Invoice, notes: list[Invoice], note: tuple[Draft, int, int], why: Deliberate
) -> list[Transaction]:
    """The ledger's transactions of a note: draft, cents, and how many of those were open."""
    draft, gross, open_cents = note
    id_ = _transaction_id(why.at)
    if invoice.kind == "top_up":
        # The credit itself is paid back by a refund: what a note on its document gives back is the tax.
        tax = _femto(sum(each.tax_cents for each in draft.document.tax))
        both = Entry(Account.TAX_PAYABLE, Femto(-tax)), Entry(Account.CASH, tax)
        return [_transaction("credit_note", wallet, both if tax else (), why, id_)]
    entries = entries_of(draft.document.lines, draft.document.tax, usage=True)
    faced = tuple(Entry(entry.account, Femto(-entry.amount)) for entry in entries)
    granted = _granted_back(invoice, notes, gross - open_cents)
    back = GivenBack(id_, faced, _femto(open_cents), _femto(granted))
    transactions = [_transaction("credit_note", wallet, wallet.give_back(back, why.at), why, id_)]
    if granted:
        again = Grant(_femto(granted), "granted", f"applied to {invoice.number}", why.actor)
        lot_id = _transaction_id(why.at)
        transactions.append(_transaction("credit", wallet, wallet.credit(lot_id, again, why.at), why, lot_id))
    return transactions


def _granted_back(invoice: Invoice, notes: list[Invoice], back: int) -> int:
    """How much of ``back`` is granted credit again: what was paid for comes back first."""
    paid_for = invoice.paid_cents + invoice.credits_applied_cents - invoice.granted_cents
    before = sum(each.total_cents for each in notes) - invoice.credited_cents
    return max(0, before + back - paid_for) - max(0, before - paid_for)


def _settled(invoice: Invoice, at: datetime) -> Invoice:
    """Paid, where nothing is open any more."""
    if invoice.state == "finalised" and not invoice.open_cents:
        return replace(invoice, state="paid", settled_at=at)
    return invoice


async def locked(connection: Connection, number: str) -> Invoice:
    """A document that nobody else settles before this transaction ends; raises InvoiceMissing."""
    found = await repository.select_invoice(connection, number)
    if found is None:
        raise InvoiceMissing(number)
    await repository.lock(connection, found.tenant_id)
    found = await repository.select_invoice(connection, number)
    assert found is not None
    return found


async def _wallet(connection: Connection, tenant_id: str) -> Wallet:
    return (await ledger.open_wallets(connection, [tenant_id]))[tenant_id]


def _femto(cents: int) -> Femto:
    return Femto(cents * FEMTO_PER_CENT)


def _transaction_id(at: datetime) -> UUID:
    return mint(at, secrets.token_bytes(RANDOM_BYTES))


def _transaction(
    kind: Kind, wallet: Wallet, entries: tuple[Entry, ...], why: Deliberate, id_: UUID | None = None
) -> Transaction:
    id_ = id_ or _transaction_id(why.at)
    return Transaction(id_, wallet.tenant_id, kind, why.at, entries, why.actor, why.reason)


def _deed(invoice: Invoice, action: str, why: Deliberate, facts: dict[str, Any]) -> Deed:
    after = {**facts, "reason": why.reason, "at": why.at.astimezone(UTC).isoformat()}
    return Deed(invoice.tenant_id, why.actor, action, invoice.number, why.at, after=after)
