"""What a document says to people, word for word: PDF and HTML only set it."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, TypedDict

from billing.interval import zone_of
from billing.invoicing.document import DRAFT, DocumentKind, InvoiceDocument
from billing.invoicing.lines import Cache, Line, UsageRow
from billing.invoicing.paper.bar import Share, bar
from billing.invoicing.party import Party
from billing.money import Femto, decimal_of, rate_text

TITLES: Final[dict[DocumentKind, str]] = {
    "invoice": "Invoice",
    "statement": "Statement",
    "top_up": "Top-up",
    "credit_note": "Credit note",
}
ERASED: Final = "(erased)"
_UNNAMED: Final = "(no billing profile)"


class Fact(TypedDict):
    """A word and what it is."""

    name: str
    value: str


class Row(TypedDict):
    """A line: tokens and rate are empty where it has none."""

    text: str
    tokens: str
    rate: str
    amount: str


class Sum(TypedDict):
    """A line below the rows."""

    text: str
    amount: str
    strong: bool


class CacheShown(TypedDict):
    """The cache section: facts, and a picture with its words."""

    facts: list[Fact]
    svg: str
    words: str


class Page(TypedDict):
    """All of it. ``notes`` are sentences below the sums, ``proof`` is what to check it by."""

    title: str
    number: str
    currency: str
    draft: bool
    facts: list[Fact]
    seller: list[str]
    buyer: list[str]
    rows: list[Row]
    sums: list[Sum]
    notes: list[str]
    cache: CacheShown | None
    proof: list[Fact]


def page_of(document: InvoiceDocument, buyer: Party | None, key_id: str | None = None) -> Page:
    """The page of a document.

    Args:
        document: as it was signed, or a draft.
        buyer: the profile that it commits to; None when that is erased, or there was none.
        key_id: of the key that signed it; None for a draft.
    """
    unnamed = _UNNAMED if document.buyer is None else ERASED
    return Page(
        title=TITLES[document.document],
        number=document.number,
        currency=document.currency,
        draft=document.number == DRAFT,
        facts=list(_facts(document)),
        seller=_party(document.seller, _UNNAMED),
        buyer=[*_party(buyer, unnamed), f"Account {document.tenant}"],
        rows=list(_rows(document)),
        sums=list(_sums(document)),
        notes=list(_notes(document)),
        cache=None if document.cache is None else _cache(document.cache, document.currency),
        proof=[] if key_id is None else list(_proof(document, key_id)),
    )


def cents_text(cents: int) -> str:
    """Whole cents as an amount: ``-1,234.50``."""
    units, rest = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}{units:,}.{rest:02}"


def _facts(document: InvoiceDocument) -> Iterator[Fact]:
    if document.log is not None:
        last = document.until - timedelta(microseconds=1)
        days = f"{_day(document.since, document.zone)} to {_day(last, document.zone)}"
        yield Fact(name="Period", value=f"{days}, days of {document.zone}")
    if document.credits is not None:
        yield Fact(name="Credits", value=document.credits)
    yield Fact(name="Issued", value=_day(document.issued_at, document.zone))
    if document.due_at is not None and document.due_cents:
        yield Fact(name="Due", value=_day(document.due_at, document.zone))
    yield Fact(name="Currency", value=document.currency)


def _party(party: Party | None, unnamed: str) -> list[str]:
    if party is None:
        return [unnamed]
    tax_id = f"Tax id {party.tax_id}" if party.tax_id else ""
    lines = (party.legal_name, *party.address.split("\n"), party.country, tax_id, party.email)
    return [line for line in lines if line]


def _rows(document: InvoiceDocument) -> Iterator[Row]:
    """Lines of usage stand first, one for each row of usage, in its order."""
    usage = (*document.usage, *(None for _ in document.lines[len(document.usage) :]))
    for line, row in zip(document.lines, usage, strict=True):
        yield _row(line, row)


def _row(line: Line, row: UsageRow | None) -> Row:
    return Row(
        text=line.text,
        tokens="" if row is None else f"{row.tokens:,}",
        rate="" if row is None else rate_text(int(row.rate_femto)),
        amount=cents_text(line.cents),
    )


def _sums(document: InvoiceDocument) -> Iterator[Sum]:
    net = sum(line.cents for line in document.lines)
    yield Sum(text="Sum before tax", amount=cents_text(net), strong=False)
    for tax in document.tax:
        if tax.tax_cents or tax.rate != "0":
            text = f"Tax {tax.rate} % on {cents_text(tax.basis_cents)}"
            yield Sum(text=text, amount=cents_text(tax.tax_cents), strong=False)
    yield Sum(text="Total", amount=cents_text(document.total_cents), strong=True)
    if document.credits_applied_cents:
        applied = cents_text(-document.credits_applied_cents)
        yield Sum(text="Paid from credit", amount=applied, strong=False)
    if document.document == "invoice":
        yield Sum(text="Due", amount=cents_text(document.due_cents), strong=True)


def _notes(document: InvoiceDocument) -> Iterator[str]:
    if document.document == "statement":
        yield "Usage of this period was drawn from prepaid credit. Nothing is due."
    if document.reason:
        yield f"Reason: {document.reason}"
    if document.terms and document.terms[-1].terms.tax_note:
        yield document.terms[-1].terms.tax_note
    for words, amount in (
        ("was carried in from", document.carried_in),
        ("is carried to", document.carried_out),
    ):
        if amount:
            which = "the document before" if words.endswith("from") else "the next document"
            yield f"Less than a cent of usage, {decimal_of(amount)} {document.currency}, {words} {which}."
    if any(row.section == "late" for row in document.usage):
        yield "Usage of earlier periods became known after their documents were closed."


def _cache(cache: Cache, currency: str) -> CacheShown:
    buckets = (
        ("served from cache", cache.hit_tokens, "hit"),
        ("promised, computed again", cache.owed_tokens, "owed"),
        ("written to cache", cache.write_tokens, "write"),
        ("computed", cache.miss_tokens, "miss"),
    )
    whole = sum(tokens for _, tokens, _ in buckets)
    shares = [Share(name, tokens, kind) for name, tokens, kind in buckets if tokens]
    words = ", ".join(f"{_percent(share.amount, whole)} {share.name}" for share in shares)
    tokens = [Fact(name=f"Input tokens {name}", value=f"{count:,}") for name, count, _ in buckets if count]
    amounts = [
        Fact(name=name, value=f"{decimal_of(Femto(int(femto)))} {currency}")
        for name, femto in (
            ("The same usage without cache", cache.uncached_femto),
            ("Saved by the cache", cache.saved_femto),
            ("What broken promises cost us", cache.broken_promises_femto),
        )
    ]
    output = Fact(name="Output tokens", value=f"{cache.output_tokens:,}")
    return CacheShown(facts=[*tokens, output, *amounts], svg=bar(shares), words=words or "no input")


def _proof(document: InvoiceDocument, key_id: str) -> Iterator[Fact]:
    if document.log is not None:
        place = f"the first {document.log.closes_at:,} receipts"
        yield Fact(name="Receipt log closed at", value=f"{place}, root {document.log.root}")
        yield Fact(name="Receipts of this account", value=f"{document.log.receipts:,}")
        if document.log.previous is not None:
            yield Fact(name="Follows on", value=document.log.previous.number)
    yield Fact(name="Signed by", value=key_id)


def _percent(part: int, whole: int) -> str:
    """To the tenth, down: nothing below the whole is told as all of it."""
    tenths = part * 1000 // whole
    return f"{tenths // 10}.{tenths % 10} %"


def _day(at: datetime, zone: str) -> str:
    day = at.astimezone(zone_of(zone)).date()
    return f"{day.day} {day:%B %Y}"
