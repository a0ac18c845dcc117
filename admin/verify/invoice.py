"""The invoices of a bundle, derived again from its receipts. Offline, and to the letter.

form      it is a document that the deployment signed, under its own number
head      it closes at a head of the log that is in the bundle
prices    the rows that it names are those of the bundle
chain     it goes on where the document before, when that is there, has ended
receipts  as many as it covers, by leaf index and rating instant, are there
usage     each row is what the receipts that it covers come to
cache     likewise the section about the cache
lines     usage and its terms give its lines, its tax, its remainder and its totals

What it is derived from beside receipts it says itself: terms, coupons, corrections, what was drawn from
credit as it was used, and credit applied. A receipt that fails a check of its own is not counted.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self

from admin.verify.bundle import Tally
from admin.verify.finding import Finding, Place
from admin.verify.receipt import CheckedReceipt
from admin.verify.trust import Trust
from billing.errors import BillingError
from billing.invoicing.crediting import credited_lines
from billing.invoicing.derive import derive
from billing.invoicing.document import InvoiceDocument
from billing.invoicing.lines import Line, Side, Sum, Tax, UsageRow, cache_of, taxes, usage_rows
from billing.pricing.book import PriceRow
from billing.pricing.document import row_sha256
from billing.receipts.document import ReceiptDocument
from engine.proof.signed import ProofInvalid

FOLDER: Final = "invoices/"

_OF_PERIOD: Final = ("invoice", "statement")


@dataclass(frozen=True, slots=True)
class Window:
    """Which receipts a document covers, and from which instant on they are of its own period."""

    tenant_id: str
    since: datetime
    until: datetime
    closes_at: int
    before: tuple[int, datetime] | None

    @classmethod
    def of(cls, document: InvoiceDocument) -> Self:
        """That of a document of a period."""
        log = document.log
        assert log is not None
        before = None if log.previous is None else (log.previous.closes_at, log.previous.until)
        return cls(document.tenant, document.since, document.until, log.closes_at, before)

    def covers(self, leaf_index: int, receipt: ReceiptDocument) -> bool:
        """Whether it covers a receipt in this place of the log."""
        if receipt.tenant_id != self.tenant_id or not self._holds(
            leaf_index, receipt, self.closes_at, self.until
        ):
            return False
        return self.before is None or not self._holds(leaf_index, receipt, *self.before)

    @staticmethod
    def _holds(leaf_index: int, receipt: ReceiptDocument, closes_at: int, until: datetime) -> bool:
        return leaf_index < closes_at and receipt.rated_at < until


@dataclass(slots=True)
class Claims:
    """What documents say, by file, those that could be read; the rows that rated; what was found so far."""

    documents: dict[str, InvoiceDocument] = field(default_factory=dict)
    rows: dict[str, PriceRow] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def of_periods(self) -> dict[str, InvoiceDocument]:
        """Invoices and statements."""
        return {name: one for name, one in self.documents.items() if one.document in _OF_PERIOD}


class InvoiceTally:
    """Implements `admin.verify.bundle.Tally`: what the receipts that each document covers come to.

    Between processes travel the sums alone: what documents say stays where they were read.
    """

    def __init__(
        self,
        windows: tuple[Window, ...],
        sums: list[dict[Side, Sum]] | None = None,
        claims: Claims | None = None,
    ) -> None:
        self._windows = windows
        self.sums = [{} for _ in windows] if sums is None else sums
        self._claims = claims

    def __reduce__(self) -> tuple[Any, ...]:
        return InvoiceTally, (self._windows, self.sums)

    def fresh(self) -> "InvoiceTally":
        """See `Tally`."""
        return InvoiceTally(self._windows, claims=self._claims)

    def add(self, checked: CheckedReceipt) -> None:
        """See `Tally`."""
        receipt = checked.document
        assert receipt is not None, "it has passed every step"
        for window, sums in zip(self._windows, self.sums, strict=True):
            if window.covers(checked.sealed.leaf_index, receipt):
                side = Side(
                    "late" if receipt.rated_at < window.since else "period",
                    receipt.model,
                    receipt.price_row_id,
                    receipt.window,
                    receipt.tier,
                )
                sums.setdefault(side, Sum()).add(_sum_of(receipt))

    def merge(self, other: Tally) -> None:
        """See `Tally`."""
        assert isinstance(other, InvoiceTally)
        for mine, theirs in zip(self.sums, other.sums, strict=True):
            for side, each in theirs.items():
                mine.setdefault(side, Sum()).add(each)

    def findings(self) -> Iterable[Finding]:
        """See `Tally`."""
        claims = self._claims
        assert claims is not None, "asked where the documents were read"
        yield from claims.findings
        for (name, document), sums in zip(claims.of_periods.items(), self.sums, strict=True):
            yield from _against_receipts(name, document, sums, claims.rows)
            yield from _derived(name, document)
        for name, document in claims.documents.items():
            if document.document == "top_up" and document.tax != taxes(document.lines):
                yield _finding(name, "lines", _tax_difference(document.tax, taxes(document.lines)))
            if document.document == "credit_note":
                yield from _credited(name, document, claims)


@dataclass(frozen=True, slots=True)
class Invoices:
    """Implements `admin.verify.bundle.InvoiceHook`. ``more`` are documents that lie beside the bundle."""

    more: Mapping[str, bytes] = field(default_factory=dict)

    def begin(self, files: Mapping[str, bytes], trust: Trust) -> InvoiceTally:
        """Read the documents, and hold them against keys, heads, prices and one another."""
        claims = Claims(rows=trust.rows)
        for name, raw in sorted({**files, **self.more}.items()):
            try:
                document = InvoiceDocument.verify(raw.decode(), trust.ring)
            except (ProofInvalid, BillingError, ValueError) as error:
                claims.findings.append(_finding(name, "form", str(error)))
                continue
            claims.documents[name] = document
            claims.findings += _alone(name, document, trust)
        claims.findings += _chained(claims)
        return InvoiceTally(tuple(map(Window.of, claims.of_periods.values())), claims=claims)


def _alone(name: str, document: InvoiceDocument, trust: Trust) -> Iterator[Finding]:
    if name != f"{FOLDER}{document.number}.json":
        yield _finding(name, "form", f"it is {document.number}")
    if document.log is not None:
        head = trust.heads.get(document.log.closes_at)
        if head is None:
            yield _finding(name, "head", f"no head of {document.log.closes_at} leaves is known")
        elif head.root.hex() != document.log.root:
            yield _finding(name, "head", f"the head of {head.size} leaves has another root")
    for price in document.prices:
        row = trust.rows.get(price.id)
        if row is None:
            yield _finding(name, "prices", f"there is no price row {price.id}")
        elif row_sha256(row) != price.sha256:
            yield _finding(name, "prices", f"{price.id} says otherwise than when it was invoiced")


def _chained(claims: Claims) -> Iterator[Finding]:
    numbered = {document.number: document for document in claims.documents.values()}
    followed: dict[str, str] = {}
    for name, document in claims.of_periods.items():
        previous = document.log.previous if document.log else None
        if previous is None:
            if document.carried_in:
                yield _finding(name, "chain", "it carries something in, and there is no document before")
            continue
        if followed.setdefault(previous.number, document.number) != document.number:
            yield _finding(
                name, "chain", f"{followed[previous.number]} goes on from {previous.number} as well"
            )
        if document.since != previous.until or document.carried_in_femto != previous.carried_out_femto:
            yield _finding(name, "chain", f"it does not begin where it says that {previous.number} has ended")
        before = numbered.get(previous.number)
        if before is None or before.log is None:
            continue
        ended = before.log.closes_at, before.until, before.carried_out_femto, before.tenant
        if ended != (previous.closes_at, previous.until, previous.carried_out_femto, document.tenant):
            yield _finding(name, "chain", f"it does not go on where {previous.number} has ended")


def _against_receipts(
    name: str, document: InvoiceDocument, sums: Mapping[Side, Sum], rows: Mapping[str, PriceRow]
) -> Iterator[Finding]:
    covered = sum(each.requests for each in sums.values())
    said = 0 if document.log is None else document.log.receipts
    if covered != said:
        yield _finding(name, "receipts", f"it covers {said}, verified ones of these are {covered}")
    try:
        expected, cache = usage_rows(sums, rows), cache_of(sums, rows)
    except BillingError as error:
        yield _finding(name, "usage", str(error))
        return
    difference = _usage_difference(document.usage, expected)
    if difference is not None:
        yield _finding(name, "usage", difference)
    if document.cache != cache:
        fields = [
            each
            for each in cache.__struct_fields__
            if getattr(cache, each) != getattr(document.cache, each, None)
        ]
        first = fields[0]
        yield _finding(
            name,
            "cache",
            f"{first} is {getattr(document.cache, first, None)}, receipts give {getattr(cache, first)}",
        )
    named = {row.price_row for row in expected}
    if missing := named - {price.id for price in document.prices}:
        yield _finding(name, "prices", f"it does not name {min(missing)}, which rated receipts of it")


def _usage_difference(said: tuple[UsageRow, ...], expected: tuple[UsageRow, ...]) -> str | None:
    """The first row that differs, by its line; None: none does."""
    for line, (one, two) in enumerate(zip(said, expected, strict=False), 1):
        if one == two:
            continue
        if _place(one) != _place(two):
            return f"line {line} is {_named(one)}, receipts give {_named(two)} there"
        return f"line {line}, {_named(one)}: {_amounts(one)}; receipts give {_amounts(two)}"
    if len(said) > len(expected):
        row = said[len(expected)]
        return f"line {len(expected) + 1}, {_named(row)}: no receipt gives it"
    if len(expected) > len(said):
        return f"a line is missing: {_named(expected[len(said)])}, {_amounts(expected[len(said)])}"
    return None


def _place(row: UsageRow) -> tuple[str, ...]:
    return row.section, row.model, row.price_row, row.window, row.tier, row.bucket


def _named(row: UsageRow) -> str:
    return f"{row.text} ({row.price_row})"


def _amounts(row: UsageRow) -> str:
    return f"{row.requests} requests, {row.tokens} tokens at {row.rate_femto}, {row.amount_femto}"


def _derived(name: str, document: InvoiceDocument) -> Iterator[Finding]:
    """Whether it says what its usage and its terms come to; the first difference."""
    try:
        derived = derive(document.basis)
    except BillingError as error:
        yield _finding(name, "lines", str(error))
        return
    for line, (one, two) in enumerate(zip(document.lines, derived.lines, strict=False), 1):
        if one != two:
            yield _finding(name, "lines", f"line {line} is {_line(one)}, usage and terms give {_line(two)}")
            return
    if len(document.lines) != len(derived.lines):
        yield _finding(
            name, "lines", f"{len(document.lines)} lines, usage and terms give {len(derived.lines)}"
        )
        return
    if document.tax != derived.tax:
        yield _finding(name, "lines", _tax_difference(document.tax, derived.tax))
        return
    for what, given in (
        ("carried_out_femto", str(derived.carried_out)),
        ("total_cents", derived.total_cents),
        ("credits_applied_cents", derived.credits_applied_cents),
        ("due_cents", derived.due_cents),
    ):
        if getattr(document, what) != given:
            yield _finding(name, "lines", f"{what} is {getattr(document, what)}, its lines give {given}")
            return


def _line(line: Line) -> str:
    return f"{line.text!r}, {line.cents} cents, {line.tax_rate} % tax"


def _tax_difference(said: tuple[Tax, ...], given: tuple[Tax, ...]) -> str:
    for one, two in zip(said, given, strict=False):
        if one != two:
            return f"tax is {_tax(one)}, its lines give {_tax(two)}"
    return f"tax at {len(said)} rates, its lines give {len(given)}"


def _tax(tax: Tax) -> str:
    return f"{tax.tax_cents} cents, {tax.rate} % of {tax.basis_cents}"


def _credited(name: str, note: InvoiceDocument, claims: Claims) -> Iterator[Finding]:
    """Whether a credit note gives back what its document, and the notes before, leave; if that is there."""
    credited = next((one for one in claims.documents.values() if one.number == note.credits), None)
    if credited is None:
        return
    notes = [one for one in claims.documents.values() if one.credits == note.credits]
    before = [one for one in notes if _position(one) < _position(note)]
    asked = {line.credits: line.cents for line in note.lines if line.credits is not None}
    try:
        lines, tax = credited_lines(credited, before, asked)
    except BillingError as error:
        yield _finding(name, "lines", str(error))
        return
    if note.tenant != credited.tenant or note.lines != lines:
        yield _finding(name, "lines", f"its lines are not those of {credited.number}")
    elif note.tax != tax:
        yield _finding(name, "lines", _tax_difference(note.tax, tax))


def _position(document: InvoiceDocument) -> int:
    return int(document.number.rpartition("-")[2].lstrip("CTS") or 0)


def _sum_of(receipt: ReceiptDocument) -> Sum:
    usage = receipt.usage
    return Sum(
        1,
        usage.cache_hit,
        usage.cache_owed,
        usage.cache_write,
        usage.cache_miss,
        usage.output,
        receipt.charge,
    )


def _finding(name: str, step: str, reason: str) -> Finding:
    return Finding(Place(name), step, reason)
