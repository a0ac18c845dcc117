"""Invoices: each period of a tenant closed once, at a head of the receipt log; drafts; what was issued."""

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from billing.audit import service as audit
from billing.audit.event import Deed
from billing.db.access import OPERATOR_READ, OWNER, SETTLER, reading
from billing.db.horizon import select_horizon
from billing.db.pages import WHOLE, Page
from billing.db.transaction import Connection, Database
from billing.errors import BillingError, InvoiceMissing, PeriodOpen, TenantMissing, UsageUnexplained
from billing.invoicing import repository
from billing.invoicing.closing import (
    Credit,
    Digest,
    Gathered,
    Place,
    entries_of,
    gather,
    next_period,
)
from billing.invoicing.covered import repository as books
from billing.invoicing.covered.repository import MARGIN
from billing.invoicing.document import InvoiceDocument
from billing.invoicing.invoice import Invoice, State
from billing.invoicing.issuing import issue
from billing.invoicing.period import Period
from billing.ledger import repository as ledger
from billing.ledger.entries import Transaction
from billing.ledger.wallet import Wallet
from billing.money import ZERO, Femto
from billing.notify.notice import Notice, instant_text
from billing.notify.service import emit
from billing.receipts.head import TreeHead
from billing.reports.rollup import LAG, Rollups
from billing.request_id import RANDOM_BYTES, mint
from billing.tenancy.repository import select_tenant, select_tenants
from billing.tenancy.tenant import Tenant
from engine.proof.ring import RingSigner

SYSTEM: Final = "system"


class SealedHead(Protocol):
    """A signed head of the log; its leaves are the events recorded before ``cut``."""

    @property
    def head(self) -> TreeHead:
        """Size and root."""

    @property
    def cut(self) -> datetime:
        """An instant."""


class HeadSource(Protocol):
    """The receipt log, as far as closing a period takes it."""

    async def close(self, now: datetime) -> SealedHead:
        """Seal all that can be; the newest head."""


class Collector(Protocol):
    """Who collects what is due, beside transfers."""

    async def collect(self, connection: Connection, invoice: Invoice, at: datetime) -> None:
        """Collect an invoice with something due, if the settler's transaction that issues it commits."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A head, and the instant before which nothing more will be recorded."""

    place: Place
    horizon: datetime


class Invoicing:
    """Closes periods. A period is closed by its document and nothing else: there is one, whatever crashes.

    Args:
        log: the receipt log; None: drafts and reading alone.
        signer: likewise.
        digest: of a price row, in hex, as documents name it.
        lag: see `Rollups`.
        collector: who is told of invoices with something due; None: they are paid by transfer.
    """

    def __init__(
        self,
        database: Database,
        digest: Digest,
        log: HeadSource | None = None,
        signer: RingSigner | None = None,
        *,
        lag: timedelta = LAG,
        collector: Collector | None = None,
    ) -> None:
        self._collector = collector
        self._database = database
        self._digest = digest
        self._log = log
        self._signer = signer
        self._lag = lag

    async def close(
        self, tenant_id: str, at: datetime, *, actor: str = SYSTEM, rederive: bool = False
    ) -> list[Invoice]:
        """Close each period of a tenant that is over: a document is issued, booked, recorded, or nothing is.

        Args:
            tenant_id: whose.
            at: now.
            actor: who asks for it.
            rederive: add up every event besides, and rate it again; it must come to the same.

        Raises:
            TenantMissing: no tenant has this id.
            PeriodOpen: there is none to close.
            UsageUnexplained: the published prices, or the events, do not give what was settled.
            StoreUnavailable: what was issued stays; again is safe.
        """
        return await self._close(tenant_id, await self._seal(at), at, actor, rederive=rederive)

    async def close_due(self, at: datetime) -> tuple[list[Invoice], dict[str, BillingError]]:
        """Close what is over, of all tenants. One that cannot be holds up no other: why, by its id."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            ends = await repository.select_ends(connection)
            tenants = await select_tenants(connection)
        due = [each.id for each in tenants if _end(each, ends.get(each.id)) + MARGIN <= at]
        issued: list[Invoice] = []
        failed: dict[str, BillingError] = {}
        if not due:
            return issued, failed
        sealed = await self._seal(at)
        for tenant_id in due:
            try:
                issued += await self._close(tenant_id, sealed, at, SYSTEM)
            except BillingError as error:
                failed[tenant_id] = error
        return issued, failed

    async def preview(self, tenant_id: str) -> InvoiceDocument:
        """The document of the first period without one, as it would be by now. It is kept nowhere.

        Raises:
            TenantMissing: no tenant has this id.
            UsageUnexplained: as `close`.
        """
        async with self._database.transaction(reading(tenant_id)) as connection:
            tenant = await _tenant(connection, tenant_id)
            cut = await books.select_watermark(connection)
            gathered = await gather(connection, tenant, Place(0, bytes(32), cut), self._digest)
            balance = await ledger.select_balance(connection, tenant_id)
            assert balance is not None
            granted, topped_up = balance.granted, Femto(max(0, balance.topped_up))
            credit = await _credit(connection, tenant_id, granted, topped_up)
        return gathered.draft(credit)[0].document

    async def invoices(
        self,
        tenant_id: str | None,
        page: Page = WHOLE,
        *,
        states: Collection[State] = (),
        newest_first: bool = False,
    ) -> list[Invoice]:
        """Documents of all kinds, of one tenant or all, in the order of issue."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await repository.select_invoices(
                connection, tenant_id, page, states=states, newest_first=newest_first
            )

    async def invoice(self, number: str, tenant_id: str | None = None) -> Invoice:
        """One document; raises InvoiceMissing where there is none, or it is another tenant's."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            found = await repository.select_invoice(connection, number)
        if found is None:
            raise InvoiceMissing(number)
        return found

    async def overdue(self, at: datetime) -> list[Invoice]:
        """What is open although it was due before an instant, the longest first."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_overdue(connection, at)

    async def _seal(self, at: datetime) -> Sealed:
        assert self._log is not None, "closing takes a log"
        async with self._database.transaction(OWNER) as connection:
            horizon = await select_horizon(connection, self._lag)
        newest = await self._log.close(at)
        # Rollups that hold all before the cut.
        await Rollups(self._database, self._lag).build()
        return Sealed(Place(newest.head.size, newest.head.root, newest.cut), min(horizon, at))

    async def _close(
        self, tenant_id: str, sealed: Sealed, at: datetime, actor: str, *, rederive: bool = False
    ) -> list[Invoice]:
        issued: list[Invoice] = []
        while True:
            try:
                issued.append(await self._close_next(tenant_id, sealed, at, actor, rederive=rederive))
            except PeriodOpen:
                if not issued:
                    raise
                return issued

    async def _close_next(
        self, tenant_id: str, sealed: Sealed, at: datetime, actor: str, *, rederive: bool
    ) -> Invoice:
        assert self._signer is not None, "issuing takes a signer"
        async with self._database.transaction(SETTLER) as connection:
            await repository.lock(connection, tenant_id)
            tenant = await _tenant(connection, tenant_id)
            await _check_closable(connection, tenant, sealed)
            gathered = await gather(connection, tenant, sealed.place, self._digest)
            if rederive:
                again = await gather(connection, tenant, sealed.place, self._digest, "events")
                _check_equal(gathered, again)
            # Charges wait from here on: what takes long is behind us.
            wallet = (await ledger.open_wallets(connection, [tenant_id]))[tenant_id]
            topped_up = Femto(max(0, wallet.topped_up))
            credit = await _credit(connection, tenant_id, wallet.granted, topped_up)
            draft, from_lots = gathered.draft(credit)
            transaction = _transaction(wallet, draft.document, from_lots, at, actor)
            if transaction is not None:
                await ledger.append(connection, [transaction], [wallet])
                draft = draft.booked(transaction.id)
            invoice = await issue(connection, self._signer, draft, at)
            if self._collector is not None and invoice.due_cents:
                await self._collector.collect(connection, invoice, at)
            await emit(connection, _notice(invoice, at))
            await audit.append(connection, _deed(invoice, actor, at))
        return invoice


def _notice(invoice: Invoice, at: datetime) -> Notice:
    facts = {
        "number": invoice.number,
        "document": invoice.kind,
        "currency": invoice.currency,
        "total_cents": invoice.total_cents,
        "due_cents": invoice.due_cents,
        "due_at": None if invoice.due_at is None else instant_text(invoice.due_at),
    }
    return Notice(invoice.tenant_id, "invoice.finalised", at, facts, f"invoice.finalised/{invoice.number}")


async def _tenant(connection: Connection, tenant_id: str) -> Tenant:
    found = await select_tenant(connection, tenant_id)
    if found is None or found.id != tenant_id:
        raise TenantMissing(tenant_id)
    return found


def _end(tenant: Tenant, closed_until: datetime | None) -> datetime:
    """Of the first period without a document."""
    if closed_until is None:
        return Period.of(tenant.created_at, tenant.tz).until
    return Period(tenant.tz, closed_until, closed_until).following(tenant.tz).until


async def _check_closable(connection: Connection, tenant: Tenant, sealed: Sealed) -> None:
    """Whether all that was recorded until some time behind the period's end is in the log."""
    closed = await repository.select_closed(connection, tenant.id)
    until, place = next_period(tenant, closed).until, sealed.place
    edge = until + MARGIN
    if closed is not None and (place.closes_at < closed.closes_at or place.cut < closed.cut):
        raise PeriodOpen("the head is older than the one that closed the period before")
    if sealed.horizon < edge:
        raise PeriodOpen(f"it ends too late, or requests of it may be running ({MARGIN} are left for them)")
    if place.cut < edge and await books.select_recorded(connection, place.cut, edge):
        raise PeriodOpen("receipts of it are not sealed yet")


async def _credit(connection: Connection, tenant_id: str, granted: Femto, topped_up: Femto) -> Credit:
    on_account = await repository.select_unapplied(connection, tenant_id, "on_account")
    return Credit(Femto(max(ZERO, on_account)), granted, topped_up)


def _check_equal(gathered: Gathered, again: Gathered) -> None:
    if gathered.document == again.document:
        return
    rows = set(gathered.basis.usage) ^ set(again.basis.usage)
    named = "; ".join(sorted(f"{row.section} {row.text}, {row.price_row}" for row in rows)) or "counts"
    raise UsageUnexplained(f"rollups and events differ: {named}")


def _transaction(
    wallet: Wallet, document: InvoiceDocument, from_lots: Femto, at: datetime, actor: str
) -> Transaction | None:
    """What the document adds to the usage that was charged, and the credit it takes; None: nothing."""
    entries = wallet.invoice(entries_of(document.lines, document.tax, usage=False), from_lots)
    if not entries:
        return None
    reason = f"{document.document} of the period until {document.until.astimezone(UTC).isoformat()}"
    id_ = mint(at, secrets.token_bytes(RANDOM_BYTES))
    return Transaction(id_, wallet.tenant_id, "invoice", at, entries, actor, reason)


def _deed(invoice: Invoice, actor: str, at: datetime) -> Deed:
    after = {
        "kind": invoice.kind,
        "until": invoice.until.astimezone(UTC).isoformat(),
        "total_cents": invoice.total_cents,
        "due_cents": invoice.due_cents,
    }
    return Deed(invoice.tenant_id, actor, "invoice.finalise", invoice.number, at, after=after)
