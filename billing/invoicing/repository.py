"""Statements on documents, their settlement, and the numbers they bear."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import RowMapping, Select, and_, func, insert, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.columns import FemtoNumeric
from billing.db.pages import WHOLE, Page
from billing.db.tables import (
    invoice,
    invoice_line,
    invoice_payment,
    invoice_usage,
    ledger_entry,
    ledger_transaction,
    number_series,
)
from billing.invoicing.document import DocumentKind
from billing.invoicing.invoice import Closed, Invoice, Issue, Payment, State
from billing.invoicing.party import Party
from billing.money import Femto

_LOCK: Final = 0x696E766F  # advisory lock of a tenant's documents, "invo"
_OF_PERIOD: Final = ("invoice", "statement")
_INVOICE: Final = [invoice.c[name] for name in Invoice.__dataclass_fields__ if name != "text"]


async def lock(connection: AsyncConnection, tenant_id: str) -> None:
    """Let one at a time write a tenant's documents, their settlement, and its terms. Charges go on."""
    statement = text("SELECT pg_advisory_xact_lock(:key, hashtext(:tenant))")
    await connection.execute(statement, {"key": _LOCK, "tenant": tenant_id})


async def take_position(connection: AsyncConnection, tenant_id: str, kind: DocumentKind) -> int:
    """The next of a series, from 1. Nobody else takes one before this transaction ends: there are no gaps."""
    statement = upsert(number_series).values(tenant_id=tenant_id, kind=kind, last=1)
    taken = await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["tenant_id", "kind"], set_={"last": number_series.c.last + 1}
        ).returning(number_series.c.last)
    )
    position: int = taken.scalar_one()
    return position


async def insert_document(connection: AsyncConnection, issue: Issue) -> None:
    """With its lines and its usage. Refused by uq_invoice_period where the period has its document."""
    of, log = issue.document, issue.document.log
    await connection.execute(
        insert(invoice).values(
            number=of.number,
            tenant_id=of.tenant,
            kind=of.document,
            position=issue.position,
            **{name: getattr(of, name) for name in ("currency", "since", "until", "issued_at", "due_at")},
            closes_at=None if log is None else log.closes_at,
            cut=issue.cut,
            carried_out=of.carried_out,
            **{name: getattr(of, name) for name in ("total_cents", "credits_applied_cents", "due_cents")},
            **{name: getattr(issue, name) for name in ("granted_cents", "corrected", "on_account")},
            document=issue.text,
            buyer=None if issue.buyer is None else issue.buyer.facts(),
            buyer_nonce=issue.buyer_nonce,
            credits=of.credits,
            reference=issue.reference,
            transaction_id=issue.transaction_id,
            state=issue.state,
            settled_at=None if of.due_cents else of.issued_at,
        )
    )
    place = {"number": of.number, "tenant_id": of.tenant}
    if of.lines:
        rows = [
            {**place, "position": position, **{name: getattr(line, name) for name in line.__struct_fields__}}
            for position, line in enumerate(of.lines)
        ]
        await connection.execute(insert(invoice_line), rows)
    if of.usage:
        await connection.execute(insert(invoice_usage), _usage(issue, place))


def _usage(issue: Issue, place: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {
            **place,
            "position": position,
            **{name: getattr(row, name) for name in ("section", "model", "tier", "bucket")},
            "price_row_id": row.price_row,
            "price_window": row.window,
            "requests": row.requests,
            "tokens": row.tokens,
            "rate": int(row.rate_femto),
            "amount": row.amount,
        }
        for position, row in enumerate(issue.document.usage)
    ]


async def select_closed(connection: AsyncConnection, tenant_id: str) -> Closed | None:
    """The end of the last period that has a document; None: none has."""
    c = invoice.c
    statement = (
        select(c.number, c.closes_at, c.cut, c.until, c.carried_out)
        .where(c.tenant_id == tenant_id, c.kind.in_(_OF_PERIOD))
        .order_by(c.until.desc())
        .limit(1)
    )
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else Closed(*row)


async def select_ends(connection: AsyncConnection) -> dict[str, datetime]:
    """Until when periods have their documents, by tenant."""
    c = invoice.c
    statement = (
        select(c.tenant_id, func.max(c.until).label("until"))
        .where(c.kind.in_(_OF_PERIOD))
        .group_by(c.tenant_id)
    )
    return {row.tenant_id: row.until for row in await connection.execute(statement)}


async def select_invoice(
    connection: AsyncConnection, number: str, *, for_update: bool = False
) -> Invoice | None:
    """None when there is none, or it is not to be seen."""
    statement = _select().where(invoice.c.number == number)
    if for_update:
        statement = statement.with_for_update(key_share=True)
    row = (await connection.execute(statement)).mappings().one_or_none()
    return None if row is None else _invoice(row)


async def select_invoices(
    connection: AsyncConnection,
    tenant_id: str | None,
    page: Page = WHOLE,
    *,
    states: Collection[State] = (),
    newest_first: bool = False,
) -> list[Invoice]:
    """In the order of issue, of one tenant or all. Behind a number that is not there comes nothing."""
    c = invoice.c
    order = (c.issued_at.desc(), c.number.desc()) if newest_first else (c.issued_at, c.number)
    statement = _select().order_by(*order).limit(page.rows_max)
    if tenant_id is not None:
        statement = statement.where(c.tenant_id == tenant_id)
    if states:
        statement = statement.where(c.state.in_(states))
    if page.after is not None:
        issued = select(c.issued_at).where(c.number == page.after).scalar_subquery()
        later = c.issued_at < issued if newest_first else c.issued_at > issued
        beside = c.number < page.after if newest_first else c.number > page.after
        statement = statement.where(or_(later, and_(c.issued_at == issued, beside)))
    return [_invoice(row) for row in (await connection.execute(statement)).mappings()]


async def select_overdue(
    connection: AsyncConnection, at: datetime, tenant_id: str | None = None
) -> list[Invoice]:
    """Finalised, with something open, and due before an instant, of one tenant or all; the longest first."""
    statement = _select().where(invoice.c.state == "finalised", invoice.c.due_at < at)
    if tenant_id is not None:
        statement = statement.where(invoice.c.tenant_id == tenant_id)
    found = (await connection.execute(statement.order_by(invoice.c.due_at, invoice.c.number))).mappings()
    return [_invoice(row) for row in found]


async def select_notes(connection: AsyncConnection, number: str) -> list[Invoice]:
    """The credit notes on a document, in the order of issue."""
    statement = _select().where(invoice.c.credits == number).order_by(invoice.c.position)
    return [_invoice(row) for row in (await connection.execute(statement)).mappings()]


async def select_by_reference(connection: AsyncConnection, tenant_id: str, reference: str) -> Invoice | None:
    """The document of a payment that was topped up."""
    statement = _select().where(invoice.c.tenant_id == tenant_id, invoice.c.reference == reference)
    row = (await connection.execute(statement)).mappings().one_or_none()
    return None if row is None else _invoice(row)


async def update_settlement(connection: AsyncConnection, settled: Invoice) -> None:
    """Write how it is settled now; it is locked."""
    values = {
        name: getattr(settled, name) for name in ("state", "paid_cents", "credited_cents", "settled_at")
    }
    await connection.execute(update(invoice).where(invoice.c.number == settled.number).values(values))


async def insert_payment(
    connection: AsyncConnection, payment: Payment, tenant_id: str, transaction_id: object
) -> None:
    """Of an invoice that is locked, whose payments do not have this reference."""
    values = {
        name: getattr(payment, name) for name in ("number", "cents", "method", "reference", "at", "actor")
    }
    await connection.execute(
        insert(invoice_payment).values(tenant_id=tenant_id, transaction_id=transaction_id, **values)
    )


async def select_payments(connection: AsyncConnection, number: str) -> list[Payment]:
    """In the order in which they were made."""
    c = invoice_payment.c
    statement = select(c.number, c.cents, c.method, c.reference, c.at, c.actor).where(c.number == number)
    return [Payment(*row) for row in await connection.execute(statement.order_by(c.at, c.reference))]


async def select_unapplied(
    connection: AsyncConnection, tenant_id: str, what: Literal["on_account", "corrected"]
) -> Femto:
    """What was paid on the receivable, or corrected there, and no document has taken in yet.

    On account is what a credit has paid there, and what was written off; in the tenant's favour above zero.
    """
    kinds = ("credit", "write_off") if what == "on_account" else ("correction",)
    moved = (
        select(func.coalesce(func.sum(ledger_entry.c.amount, type_=FemtoNumeric), 0))
        .join(ledger_transaction, ledger_transaction.c.id == ledger_entry.c.transaction_id)
        .where(
            ledger_transaction.c.tenant_id == tenant_id,
            ledger_transaction.c.kind != "charge",  # the words of the partial index
            ledger_transaction.c.kind.in_(kinds),
            ledger_entry.c.account == "receivable",
        )
        .scalar_subquery()
    )
    applied = (
        select(func.coalesce(func.sum(invoice.c[what], type_=FemtoNumeric), 0))
        .where(invoice.c.tenant_id == tenant_id)
        .scalar_subquery()
    )
    return Femto(int((await connection.execute(select(moved - applied))).scalar_one()))


def _select() -> Select[Any]:
    return select(*_INVOICE, invoice.c.document.label("text"))


def _invoice(row: RowMapping) -> Invoice:
    buyer = row["buyer"]
    return Invoice(**{**row, "buyer": None if buyer is None else Party.read(buyer)})
