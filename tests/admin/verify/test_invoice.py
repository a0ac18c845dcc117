"""An invoice is derived again from receipts, offline; whatever was changed in it is named."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from admin.verify.bundle import BundleReport, check_bundle
from admin.verify.invoice import Invoices
from admin.verify.receipt import check
from admin.verify.trust import Pin, Trust, TrustText
from billing.invoicing.crediting import credited_lines
from billing.invoicing.derive import Basis, derive
from billing.invoicing.document import InvoiceDocument, LogPlace, Previous, PriceDigest, with_derived
from billing.invoicing.lines import Line, Side, Sum, cache_of, taxes, total_of, usage_rows
from billing.invoicing.terms import Coupon, Fee, Segment, Terms
from billing.money import ZERO, Femto
from billing.pricing.document import row_sha256
from billing.receipts.bundle import Contents, InvoiceFile, write_directory
from billing.receipts.bundle_reader import open_bundle
from billing.receipts.sealed import SealedReceipt
from engine.proof import signed
from tests.bundles import BOOK, TENANT, WRITTEN_AT_S, Deployment, Log, Served, contents_of, log_of, served_by

HOUSE = Deployment()
SERVED = served_by(HOUSE, 12)
LOG = log_of(SERVED)
MIDDLE = (LOG.size + 1) // 2  # `contents_of` has heads of one leaf, of half of them, and of all
SINCE = datetime(2026, 11, 1, tzinfo=UTC)
UNTIL = datetime(2026, 11, 6, tzinfo=UTC)
END = datetime(2026, 12, 1, tzinfo=UTC)
TERMS = Terms(tax_rate="24", fees=(Fee("support", 500, "6"),))
ROWS = {row.id: row for row in BOOK.rows}


def covered(log: Log, closes_at: int, until: datetime, before: tuple[int, datetime] | None) -> list[Served]:
    """By the rule as it is written down, not as it is checked."""

    def held(place: int, one: Served, closes_at: int, until: datetime) -> bool:
        return place < closes_at and one.receipt.rated_at < until

    return [
        one
        for place, one in zip(log.places, SERVED, strict=True)
        if held(place, one, closes_at, until) and not (before and held(place, one, *before))
    ]


def invoice(number: str, closes_at: int, until: datetime, before: InvoiceDocument | None) -> InvoiceDocument:
    """Of all receipts of a period, derived as the books derive it."""
    ended = None if before is None or before.log is None else (before.log.closes_at, before.until)
    since = SINCE if before is None else before.until
    receipts, sums = covered(LOG, closes_at, until, ended), {}
    for one in receipts:
        said, usage = one.receipt, one.receipt.usage
        late = "late" if said.rated_at < since else "period"
        side = Side(late, said.model, said.price_row_id, said.window, said.tier)
        buckets = usage.cache_hit, usage.cache_owed, usage.cache_write, usage.cache_miss, usage.output
        sums.setdefault(side, Sum()).add(Sum(1, *buckets, said.charge))
    carried = ZERO if before is None else before.carried_out
    coupons = (Coupon("C", percent="10"),)
    segments = (Segment(date(2026, 11, 1), 30, TERMS),)
    basis = Basis("invoice", usage_rows(sums, ROWS), carried, (), segments, coupons)
    previous = None
    if before is not None and before.log is not None:
        previous = Previous(before.number, before.log.closes_at, before.until, before.carried_out_femto)
    rated = sorted({side.price_row_id for side in sums})
    named = {
        "document": "invoice",
        "number": number,
        "tenant": TENANT,
        "currency": "USD",
        "zone": "UTC",
        "since": since,
        "until": until,
        "issued_at": datetime(2026, 12, 1, 1, tzinfo=UTC),
        "due_at": None,
        "seller": None,
        "buyer": None,
        "log": LogPlace(closes_at, LOG.root(closes_at).hex(), len(receipts), previous),
        "prices": tuple(PriceDigest(row, row_sha256(ROWS[row])) for row in rated),
        "usage": basis.usage,
        "carried_in_femto": str(carried),
        "terms": basis.segments,
        "coupons": coupons,
        "cache": cache_of(sums, ROWS),
    }
    blank = InvoiceDocument(**named, lines=(), tax=(), total_cents=0, credits_applied_cents=0, due_cents=0)
    return with_derived(blank, derive(basis))


FIRST = invoice("AB-1", MIDDLE, UNTIL, None)
SECOND = invoice("AB-2", LOG.size, END, FIRST)


def signed_file(document: InvoiceDocument) -> InvoiceFile:
    return InvoiceFile(document.number, signed.sign(HOUSE.new, document.to_payload()))


def checked(folder: Path, *documents: InvoiceDocument, **options: Any) -> BundleReport:
    """The report on a bundle of all receipts and these documents."""
    contents = contents_of(HOUSE, SERVED, [signed_file(one) for one in documents])
    return reported(folder, contents, **options)


def reported(folder: Path, contents: Contents, **options: Any) -> BundleReport:
    write_directory(folder, contents, HOUSE.new, WRITTEN_AT_S)
    return check_bundle(folder, Pin(), jobs=1, invoices=Invoices(), **options)


def told(report: BundleReport) -> list[tuple[str, str, str]]:
    return [(each.place.file, each.step, each.reason) for each in report.findings]


def test_two_invoices_that_follow_each_other_are_derived_from_their_receipts(tmp_path: Path) -> None:
    assert {row.section for row in SECOND.usage} == {"period", "late"}, "the rule is tried in full"
    assert len({row.price_row for row in (*FIRST.usage, *SECOND.usage)}) == 3
    assert told(checked(tmp_path / "b", FIRST, SECOND)) == []
    assert told(checked(tmp_path / "alone", SECOND)) == [], "the one before need not be there"


def test_what_other_processes_counted_is_added_up(tmp_path: Path) -> None:
    contents = contents_of(HOUSE, SERVED, [signed_file(FIRST), signed_file(SECOND)])
    write_directory(tmp_path / "b", contents, HOUSE.new, WRITTEN_AT_S)
    with open_bundle(tmp_path / "b") as bundle:
        trust = Trust.of(TrustText.of_bundle(bundle, Pin()))
        root = Invoices().begin({name: bundle.content(name) for name in bundle.invoices}, trust)
        away = pickle.loads(pickle.dumps(root))  # noqa: S301  just dumped
        whole = root.fresh()
        for line in bundle.lines("receipts.jsonl"):
            tally = away.fresh()
            tally.add(check(SealedReceipt.read(line.text), trust))
            whole.merge(pickle.loads(pickle.dumps(tally)))  # noqa: S301  likewise
    assert list(whole.findings()) == []
    assert b"AB-1" not in pickle.dumps(away), "documents stay where they were read"


def test_each_byte_of_a_document_that_is_changed_is_reported(tmp_path: Path) -> None:
    name, text = f"invoices/{FIRST.number}.json", signed_file(FIRST).document
    write_directory(tmp_path / "b", contents_of(HOUSE, SERVED), HOUSE.new, WRITTEN_AT_S)
    with open_bundle(tmp_path / "b") as bundle:
        trust = Trust.of(TrustText.of_bundle(bundle, Pin()))
    for place in range(len(text)):
        changed = text[:place] + chr(ord(text[place]) ^ 1 << place % 7) + text[place + 1 :]
        found = list(Invoices().begin({name: changed.encode()}, trust).findings())
        assert [each.step for each in found] == ["form"], f"byte {place}"
        assert found[0].place.file == name


Change = Callable[[InvoiceDocument], InvoiceDocument]


def usage_changed(document: InvoiceDocument, **fields: Any) -> InvoiceDocument:
    """Its second row says something else, and all that follows from it is right."""
    rows = list(document.usage)
    rows[1] = msgspec.structs.replace(rows[1], **fields)
    changed = msgspec.structs.replace(document, usage=tuple(rows))
    return with_derived(changed, derive(changed.basis))


def line_changed(document: InvoiceDocument, position: int, cents: int) -> InvoiceDocument:
    lines = list(document.lines)
    lines[position] = msgspec.structs.replace(lines[position], cents=lines[position].cents + cents)
    tax = taxes(lines)
    total = total_of(lines, tax)
    return msgspec.structs.replace(document, lines=tuple(lines), tax=tax, total_cents=total, due_cents=total)


def set_to(**fields: Any) -> Change:
    return lambda document: msgspec.structs.replace(document, **fields)


def log_set(**fields: Any) -> Change:
    return lambda document: set_to(log=msgspec.structs.replace(document.log, **fields))(document)


def prices_set(change: Callable[[tuple[PriceDigest, ...]], tuple[PriceDigest, ...]]) -> Change:
    return lambda document: set_to(prices=change(document.prices))(document)


def one_token_more(document: InvoiceDocument) -> InvoiceDocument:
    row = document.usage[1]
    amount = str((row.tokens + 1) * int(row.rate_femto))
    return usage_changed(document, tokens=row.tokens + 1, amount_femto=amount)


def a_row_less(document: InvoiceDocument) -> InvoiceDocument:
    changed = set_to(usage=document.usage[:-1])(document)
    return with_derived(changed, derive(changed.basis))


def cheaper(document: InvoiceDocument) -> InvoiceDocument:
    return usage_changed(document, rate_femto="1", amount_femto=str(document.usage[1].tokens))


def promises_kept(document: InvoiceDocument) -> InvoiceDocument:
    return set_to(cache=msgspec.structs.replace(document.cache, broken_promises_femto="1"))(document)


FORGED: dict[str, tuple[Change, str, str]] = {
    "tokens": (one_token_more, "usage", "line 2, m"),
    "rate": (cheaper, "usage", "line 2, m"),
    "window": (lambda document: usage_changed(document, window="else"), "usage", "line 2 is m · else"),
    "requests": (lambda document: usage_changed(document, requests=99), "usage", "99 requests"),
    "a row left out": (a_row_less, "usage", "a line is missing"),
    "receipts": (log_set(receipts=99), "receipts", "it covers 99"),
    "a line": (lambda document: line_changed(document, 0, 1), "lines", "line 1 is"),
    "a fee": (
        lambda document: line_changed(document, len(document.usage), 1),
        "lines",
        "'support', 501 cents",
    ),
    "head": (log_set(root="00" * 32), "head", "another root"),
    "no head": (log_set(closes_at=2), "head", "no head of 2 leaves"),
    "price": (
        prices_set(lambda prices: (PriceDigest(prices[0].id, "00" * 32), *prices[1:])),
        "prices",
        "says otherwise",
    ),
    "no price": (prices_set(lambda prices: prices[1:]), "prices", "it does not name"),
    "cache": (promises_kept, "cache", "broken_promises_femto is 1"),
    "number": (set_to(number="AB-7"), "form", ""),
    "another tenant": (set_to(tenant="ten_b"), "receipts", "verified ones of these are 0"),
}


@pytest.mark.parametrize("what", FORGED)
def test_what_the_house_itself_would_sign_falsely_is_named_by_its_line(tmp_path: Path, what: str) -> None:
    change, step, reason = FORGED[what]
    forged = change(FIRST)
    assert forged != FIRST
    if what == "number":
        contents = contents_of(HOUSE, SERVED, [InvoiceFile(FIRST.number, signed_file(forged).document)])
        found = told(reported(tmp_path / "b", contents))
    else:
        found = told(checked(tmp_path / "b", forged))
    assert {file for file, _, _ in found} == {f"invoices/{FIRST.number}.json"}
    assert any(step == one and reason in said for _, one, said in found), found


def test_a_chain_that_does_not_go_on_is_named(tmp_path: Path) -> None:
    log = SECOND.log
    assert log is not None
    assert log.previous is not None
    for number, (fields, reason) in enumerate(
        (
            ({"closes_at": log.previous.closes_at - 1}, "it does not go on where AB-1 has ended"),
            ({"until": UNTIL - timedelta(days=1)}, "begin where it says"),
            ({"carried_out_femto": "1"}, "begin where it says"),
        )
    ):
        previous = msgspec.structs.replace(log.previous, **fields)
        forged = msgspec.structs.replace(SECOND, log=msgspec.structs.replace(log, previous=previous))
        found = told(checked(tmp_path / str(number), FIRST, forged))
        assert any(step == "chain" and reason in said for _, step, said in found), found
    again = msgspec.structs.replace(SECOND, number="AB-3")
    found = told(checked(tmp_path / "twice", FIRST, SECOND, again))
    assert ("invoices/AB-3.json", "chain", "AB-2 goes on from AB-1 as well") in found


def test_a_remainder_that_comes_from_nowhere_is_named(tmp_path: Path) -> None:
    of = replace(FIRST.basis, carried_in=Femto(5))
    forged = with_derived(msgspec.structs.replace(FIRST, carried_in_femto="5"), derive(of))
    assert [step for _, step, _ in told(checked(tmp_path / "b", forged))] == ["chain"]


def test_a_receipt_that_is_missing_is_told_by_the_totals(tmp_path: Path) -> None:
    whole = contents_of(HOUSE, SERVED, [signed_file(FIRST), signed_file(SECOND)])
    lacking = replace(whole, receipts=[one for place, one in enumerate(whole.receipts) if place != 1])
    steps = {(file, step) for file, step, _ in told(reported(tmp_path / "b", lacking))}
    assert steps == {("invoices/AB-1.json", step) for step in ("receipts", "usage", "cache")}


def note_on(document: InvoiceDocument, asked: dict[int, int], number: str = "AB-C1") -> InvoiceDocument:
    lines, tax = credited_lines(document, (), asked)
    total = total_of(lines, tax)
    fields = {"document": "credit_note", "number": number, "credits": document.number}
    fields |= {"lines": lines, "tax": tax}
    sums = {"total_cents": total, "credits_applied_cents": total, "due_cents": 0}
    nothing = {"log": None, "terms": (), "usage": (), "prices": (), "coupons": (), "cache": None}
    bare = {"carried_in_femto": "0", "carried_out_femto": "0"}
    return msgspec.structs.replace(document, **fields, **sums, **nothing, **bare)


def test_a_credit_note_gives_back_what_its_invoice_and_the_notes_before_leave(tmp_path: Path) -> None:
    fee = len(FIRST.usage)
    note = note_on(FIRST, {fee: 300})
    assert told(checked(tmp_path / "b", FIRST, note)) == []
    twice = note_on(FIRST, {fee: 300}, "AB-C2")
    found = told(checked(tmp_path / "twice", FIRST, note, twice))
    assert [(file, step) for file, step, _ in found] == [("invoices/AB-C2.json", "lines")]
    free = msgspec.structs.replace(note, tax=(), total_cents=300, credits_applied_cents=300)
    assert [step for _, step, _ in told(checked(tmp_path / "free", FIRST, free))] == ["lines"]


def test_the_tax_of_a_top_up_is_computed_again(tmp_path: Path) -> None:
    lines = (Line("top_up", "credit", 1000, "24"),)
    bare = note_on(FIRST, {len(FIRST.usage): 1}, "AB-T1")
    top_up = msgspec.structs.replace(bare, document="top_up", credits=None, lines=lines)
    for cents, steps in ((240, []), (239, ["lines"])):
        tax = (msgspec.structs.replace(taxes(lines)[0], tax_cents=cents),)
        sums = {"total_cents": 1000 + cents, "credits_applied_cents": 1000 + cents}
        document = msgspec.structs.replace(top_up, tax=tax, **sums)
        assert [step for _, step, _ in told(checked(tmp_path / str(cents), document))] == steps
