"""A period of a tenant as the books have it: what its document says, and what the ledger gets with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal

from billing.db.transaction import Connection
from billing.errors import PriceMissing, UsageUnexplained
from billing.invoicing import repository
from billing.invoicing.agreements import repository as agreements
from billing.invoicing.covered import repository as books
from billing.invoicing.covered.repository import Covered, Rated
from billing.invoicing.derive import Basis, correction_used, derive
from billing.invoicing.document import DRAFT, InvoiceDocument, LogPlace, Previous, PriceDigest, with_derived
from billing.invoicing.invoice import Closed, Issue
from billing.invoicing.issuing import Draft
from billing.invoicing.lines import Adjustment, Line, LineKind, Side, Sum, Tax, cache_of, usage_rows
from billing.invoicing.period import Period
from billing.invoicing.terms import segments
from billing.ledger.entries import Account, Entry
from billing.money import FEMTO_PER_CENT, ZERO, Femto
from billing.pricing.book import PriceBook, PriceRow
from billing.pricing.repository import select_book
from billing.tenancy.tenant import Tenant

Source = Literal["rollups", "events"]
Digest = Callable[[PriceRow], str]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_ACCOUNT_OF: Final[Mapping[LineKind, Account]] = {
    "usage": Account.REVENUE,
    "late": Account.REVENUE,
    "prepaid": Account.REVENUE,
    "correction": Account.REVENUE,
    "discount": Account.DISCOUNTS,
    "coupon": Account.DISCOUNTS,
    "fee": Account.FEES,
    "commitment": Account.FEES,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the log a document ends: leaves and root of a head, and the instant of its cut."""

    closes_at: int
    root: bytes
    cut: datetime


@dataclass(frozen=True, slots=True)
class Credit:
    """What a tenant has to pay with, in the order of use: paid on the receivable, granted, topped up."""

    on_account: Femto
    granted: Femto
    topped_up: Femto

    @property
    def cents(self) -> int:
        """In whole cents."""
        return (self.on_account + self.granted + self.topped_up) // FEMTO_PER_CENT


@dataclass(frozen=True, slots=True)
class Gathered:
    """All of a period but the credit that it is paid from."""

    document: InvoiceDocument
    basis: Basis
    cut: datetime
    corrected: Femto

    def draft(self, credit: Credit) -> tuple[Draft, Femto]:
        """What is issued, and how much of lots is applied to it."""
        derived = derive(replace(self.basis, credit_cents=credit.cents))
        applied = derived.credits_applied_cents * FEMTO_PER_CENT
        on_account = min(applied, credit.on_account)
        granted = min(applied - on_account, credit.granted)
        document = with_derived(self.document, derived)
        beside = Issue(
            document,
            position=0,
            text="",
            cut=self.cut,
            granted_cents=granted // FEMTO_PER_CENT,
            corrected=self.corrected,
            on_account=Femto(on_account),
        )
        return Draft(document, beside), Femto(applied - on_account)


def next_period(tenant: Tenant, closed: Closed | None) -> Period:
    """The first that has no document; a tenant's first is the month in which it was made."""
    if closed is None:
        return Period.of(tenant.created_at, tenant.tz)
    # Its zone is of no account: the next one begins where it ends.
    return Period(tenant.tz, closed.until, closed.until).following(tenant.tz)


async def gather(
    connection: Connection, tenant: Tenant, place: Place, digest: Digest, source: Source = "rollups"
) -> Gathered:
    """What the period after the last closed one comes to if it ends at this place of the log.

    Raises:
        UsageUnexplained: the published prices do not give what was settled.
    """
    closed = await repository.select_closed(connection, tenant.id)
    period = next_period(tenant, closed)
    covered = covered_by(tenant.id, period, closed, place.cut)
    book = await select_book(connection)
    sums = await sums_of(connection, covered, book.of(tenant.id), tenant.currency, source)
    prices = {row.id: row for row in book.rows}
    rows = usage_rows(sums, prices)
    usage = Femto(sum(row.amount for row in rows))
    carried_in = ZERO if closed is None else closed.carried_out
    prepaid = await _prepaid(connection, tenant, covered, usage)
    corrections = await repository.select_unapplied(connection, tenant.id, "corrected")
    corrected = correction_used(corrections, Femto(usage + carried_in - prepaid))
    adjustments = [
        *([Adjustment("prepaid", str(-prepaid))] if prepaid else []),
        *([Adjustment("correction", str(-corrected))] if corrected else []),
    ]
    billed = tenant.billing_mode == "postpaid" or usage != prepaid or corrected != 0
    dated = await agreements.select_terms(connection, tenant.id)
    given = await agreements.select_coupons(connection, tenant.id)
    basis = Basis(
        kind="invoice" if billed else "statement",
        usage=rows,
        carried_in=carried_in,
        adjustments=tuple(adjustments),
        segments=segments(period, dated),
        coupons=tuple(one.coupon for one in given if billed and one.offered(period.since, period.end_day)),
    )
    document = InvoiceDocument(
        document=basis.kind,
        number=DRAFT,
        tenant=tenant.id,
        currency=tenant.currency,
        zone=period.zone,
        since=period.since,
        until=period.until,
        issued_at=place.cut,
        due_at=None,
        seller=None,
        buyer=None,
        lines=(),
        tax=(),
        total_cents=0,
        credits_applied_cents=0,
        due_cents=0,
        log=LogPlace(
            place.closes_at, place.root.hex(), sum(each.requests for each in sums.values()), _previous(closed)
        ),
        prices=tuple(
            PriceDigest(row_id, digest(prices[row_id]))
            for row_id in sorted({side.price_row_id for side in sums})
        ),
        usage=rows,
        carried_in_femto=str(carried_in),
        adjustments=basis.adjustments,
        terms=basis.segments,
        coupons=basis.coupons,
        cache=cache_of(sums, prices),
    )
    return Gathered(document, basis, place.cut, corrected)


def covered_by(tenant_id: str, period: Period, closed: Closed | None, cut: datetime) -> Covered:
    """Which requests a document of this period covers."""
    return Covered(
        tenant_id=tenant_id,
        since=period.since,
        until=period.until,
        cut=cut,
        begins=EPOCH if closed is None else closed.until,
        cut_before=EPOCH if closed is None else closed.cut,
    )


async def sums_of(
    connection: Connection, covered: Covered, book: PriceBook, currency: str, source: Source
) -> dict[Side, Sum]:
    """Usage of these requests, from rollups, or from each event, whose price is looked up again.

    Raises:
        UsageUnexplained: from events, one was rated by another row or window than was in force.
    """
    if source == "rollups":
        return await books.select_sums(connection, covered)
    sums: dict[Side, Sum] = {}
    for rated in await books.select_rated(connection, covered):
        for at in (rated.first, rated.last):
            _check(rated, book, currency, at)
        sums.setdefault(rated.side, Sum()).add(rated.total)
    return sums


def _check(rated: Rated, book: PriceBook, currency: str, at: datetime) -> None:
    side = rated.side
    try:
        row = book.row(side.model, currency, at)
    except PriceMissing as missing:
        raise UsageUnexplained(str(missing)) from missing
    now = row.id, row.rates_at(at)[0]
    if now != (side.price_row_id, side.window):
        raise UsageUnexplained(
            f"at {at.isoformat()} {side.model} was rated by {side.price_row_id} ({side.window}),"
            f" in force was {now[0]} ({now[1]})"
        )


async def _prepaid(connection: Connection, tenant: Tenant, covered: Covered, usage: Femto) -> Femto:
    """What was drawn from credit as it was used: all or nothing, unless the way to pay has changed."""
    if await books.select_mode_changed(connection, tenant.id):
        return Femto(await books.select_prepaid(connection, covered))
    return usage if tenant.billing_mode == "prepaid" else ZERO


def _previous(closed: Closed | None) -> Previous | None:
    if closed is None:
        return None
    return Previous(closed.number, closed.closes_at, closed.until, str(closed.carried_out))


def entries_of(lines: tuple[Line, ...], tax: tuple[Tax, ...], *, usage: bool) -> tuple[Entry, ...]:
    """What lines and tax are in our accounts. Usage was booked when it was charged: only if asked for."""
    cents: dict[Account, int] = {}
    for line in lines:
        account = _ACCOUNT_OF[line.kind]
        if usage or account is not Account.REVENUE:
            cents[account] = cents.get(account, 0) + line.cents
    cents[Account.TAX_PAYABLE] = sum(each.tax_cents for each in tax)
    return tuple(
        Entry(account, Femto(amount * FEMTO_PER_CENT)) for account, amount in cents.items() if amount
    )
