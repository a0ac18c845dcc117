"""Documents against what they were made of: their signed text, the events they cover, the one before."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from billing.db.access import OPERATOR_READ
from billing.db.transaction import Connection, Database
from billing.errors import BillingError, UsageUnexplained
from billing.invoicing import repository as invoicing
from billing.invoicing.closing import EPOCH, sums_of
from billing.invoicing.covered.repository import Covered
from billing.invoicing.document import InvoiceDocument
from billing.invoicing.lines import UsageRow, usage_rows
from billing.pricing.book import PriceBook
from billing.pricing.repository import select_book
from billing.reconcile import repository
from billing.reconcile.finding import Finding
from billing.reconcile.repository import Row
from engine.proof.ring import DeploymentRing
from engine.proof.signed import ProofInvalid

CHECK: Final = "invoices = events"

_SAME: Final = ("since", "until", "currency", "total_cents", "credits_applied_cents", "due_cents")


class Documents:
    """One look at documents; ``ring`` verifies their signatures, None: they are not looked at."""

    def __init__(self, database: Database, ring: DeploymentRing | None) -> None:
        self._database = database
        self._ring = ring

    async def look(self, since: datetime, until: datetime) -> list[Finding]:
        """Of the documents issued in ``[since, until)``, each in a transaction of its own."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            places = [row async for row in repository.rows_of(connection, repository.DOCUMENTS, since, until)]
        found: list[Finding] = []
        for place in places:
            async with self._database.transaction(OPERATOR_READ) as connection:
                found += [Finding(CHECK, *each) for each in await self._of(connection, place)]
        return found

    async def _of(self, connection: Connection, place: Row) -> list[tuple[str, str]]:
        number = place["number"]
        invoice = await invoicing.select_invoice(connection, number)
        if invoice is None:
            return [(number, "it has gone meanwhile")]
        try:
            document = (
                invoice.document if self._ring is None else InvoiceDocument.verify(invoice.text, self._ring)
            )
        except (BillingError, ProofInvalid) as error:
            return [(number, f"its signed text is not what was issued: {error}")]
        found = [
            (number, f"it is kept with another {name} than it says") for name in _differing(place, document)
        ]
        lines = await repository.select_lines(connection, number)
        found += _by_position(number, "line", lines, document.lines)
        usage = await repository.select_usage(connection, number)
        found += _by_position(number, "usage", usage, document.usage)
        if place["cut"] is not None:
            found += _chain(place, document)
            found += await self._derived(connection, place, usage)
        return found

    async def _derived(
        self, connection: Connection, place: Row, kept: list[UsageRow]
    ) -> list[tuple[str, str]]:
        """Its usage from every event that it covers, which is rated again."""
        covered = Covered(
            tenant_id=place["tenant_id"],
            since=place["since"],
            until=place["until"],
            cut=place["cut"],
            begins=place["begins"] or EPOCH,
            cut_before=place["cut_before"] or EPOCH,
        )
        book = await select_book(connection)
        try:
            derived = await _usage(connection, covered, book, place["currency"])
        except UsageUnexplained as error:
            return [(place["number"], f"the events that it covers are not explained: {error}")]
        theirs, ours = ({_side(row): row for row in rows} for rows in (derived, kept))
        return [
            (
                place["number"],
                f"{' · '.join(side)}: it has {_said(ours.get(side))}, events {_said(theirs.get(side))}",
            )
            for side in sorted(theirs.keys() | ours.keys())
            if theirs.get(side) != ours.get(side)
        ]


async def _usage(
    connection: Connection, covered: Covered, book: PriceBook, currency: str
) -> tuple[UsageRow, ...]:
    sums = await sums_of(connection, covered, book.of(covered.tenant_id), currency, "events")
    return usage_rows(sums, {row.id: row for row in book.rows})


def _differing(place: Row, document: InvoiceDocument) -> Iterator[str]:
    if place["kind"] != document.document:
        yield "kind"
    if place["tenant_id"] != document.tenant:
        yield "tenant"
    yield from (name for name in _SAME if place[name] != getattr(document, name))
    if place["cut"] is not None and int(place["carried_out"]) != document.carried_out:
        yield "remainder carried out"


def _chain(place: Row, document: InvoiceDocument) -> Iterator[tuple[str, str]]:
    """Each period begins where the one before it ends, with the remainder that is left there."""
    number, carried = place["number"], int(place["carried_in"] or 0)
    if document.carried_in != carried:
        yield number, f"it carries in {document.carried_in}, the document before leaves {carried}"
    previous = None if document.log is None else document.log.previous
    named = None if previous is None else previous.number
    if named != place["before"]:
        yield number, f"it follows {named}, the books have {place['before']} before it"
    elif place["begins"] not in {None, document.since}:
        yield number, f"it begins at {document.since}, the document before ends at {place['begins']}"


def _by_position(
    number: str, what: str, kept: Sequence[object], said: Sequence[object]
) -> Iterator[tuple[str, str]]:
    if len(kept) != len(said):
        yield number, f"it says {len(said)} rows of {what}, kept are {len(kept)}"
        return
    for position, (ours, theirs) in enumerate(zip(kept, said, strict=True)):
        if ours != theirs:
            yield f"{number} {what} {position}", f"kept is {ours}, it says {theirs}"


def _side(row: UsageRow) -> tuple[str, ...]:
    return row.section, row.model, row.price_row, row.window, row.tier, row.bucket


def _said(row: UsageRow | None) -> str:
    return (
        "nothing" if row is None else f"{row.tokens} tokens of {row.requests} requests for {row.amount_femto}"
    )
