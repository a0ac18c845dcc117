"""Documents as people read them: PDF and HTML say the same, and nobody's name becomes markup."""

from html.parser import HTMLParser
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfReader

from admin.verify.attached import attached_to
from billing.errors import BundleInvalid, DocumentUnprintable
from billing.invoicing.derive import Basis
from billing.invoicing.document import InvoiceDocument
from billing.invoicing.lines import Adjustment, Cache
from billing.invoicing.paper.bar import WIDTH, Share, bar
from billing.invoicing.paper.html import html_of
from billing.invoicing.paper.page import Page, cents_text, page_of
from billing.invoicing.paper.pdf import BUNDLE_NAME, DOCUMENT_NAME, pdf_of, receipts_bundle, signed_document
from billing.invoicing.party import Party
from billing.invoicing.terms import Discount, Fee, Terms
from billing.money import FEMTO_PER_CENT
from tests.billing.invoicing.examples import basis, document, row

SELLER = Party("Kvitto AB", "Storgatan 1\n111 22 Stockholm", "SE", "SE556000000001", "billing@kvitto.example")
BUYER = Party("Äcme <b>Örebro</b> & #Co $x$", "Gata 2", "SE", "SE1", "a@b.example")
TERMS = Terms(
    tax_rate="24", tax_note="a note on tax", fees=(Fee("Support", 49_900),), discounts=(Discount(0, "5"),)
)
CACHE = Cache(5_000_000, 20_000, 0, 1_000_000, 123_456, "12", "22", "10", "2")
KEY_ID = "ed25519_0123"


def invoice(of: Basis | None = None, **fields: Any) -> InvoiceDocument:
    usage = basis(
        row(5_000_000, 14_000, bucket="cache_hit", model="deepseek-v4-pro", window="off-peak"),
        row(1_000, FEMTO_PER_CENT, section="late"),
        row(1, FEMTO_PER_CENT - 1),
        terms=TERMS,
    )
    return document(of or usage, **{"seller": SELLER, "cache": CACHE, **fields})


def page(said: InvoiceDocument | None = None, buyer: Party | None = BUYER) -> Page:
    return page_of(said or invoice(), buyer, KEY_ID)


def words_of(pdf: bytes) -> str:
    """What a reader of the PDF sees, without its line breaks."""
    return " ".join(" ".join(sheet.extract_text() for sheet in PdfReader(BytesIO(pdf)).pages).split())


class Words(HTMLParser):
    """What a reader of the HTML sees, and which elements there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.said: list[str] = []
        self.elements: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        self.said += data.split()


def spoken(shown: Page) -> list[str]:
    """Every text of a page that both forms must show."""
    facts = [*shown["facts"], *shown["proof"], *(shown["cache"]["facts"] if shown["cache"] else [])]
    rows = [(each["text"], each["tokens"], each["rate"], each["amount"]) for each in shown["rows"]]
    sums = [(each["text"], each["amount"]) for each in shown["sums"]]
    names = [(fact["name"], fact["value"]) for fact in facts]
    return [
        *(text for texts in (*rows, *sums, *names) for text in texts if text),
        *shown["seller"],
        *shown["buyer"],
        *shown["notes"],
    ]


def test_pdf_and_html_say_every_word_of_the_page() -> None:
    shown = page()
    pdf, html = words_of(pdf_of(shown, 0)), " ".join(Words(html_of(shown)).said)
    for text in spoken(shown):
        assert " ".join(text.split()) in html
        assert "".join(text.split()) in "".join(pdf.split()).replace("\u00ad", ""), text


def test_lines_and_tax_add_up_to_what_is_due_as_written() -> None:
    shown = page(invoice(document="invoice"))
    lines = sum(int(each["amount"].replace(".", "").replace(",", "")) for each in shown["rows"])
    sums = {each["text"]: each["amount"] for each in shown["sums"]}
    (tax,) = (amount for text, amount in sums.items() if text.startswith("Tax 24 %"))
    assert sums["Sum before tax"] == cents_text(lines)
    assert sums["Due"] == sums["Total"] == cents_text(lines + int(tax.replace(".", "").replace(",", "")))


def test_a_name_that_looks_like_markup_stays_a_name() -> None:
    parsed = Words(html_of(page()))
    assert "b" not in parsed.elements
    assert "script" not in parsed.elements
    assert "Äcme<b>Örebro</b>&#Co$x$" in "".join(parsed.said)


def test_an_erased_buyer_leaves_the_rest() -> None:
    shown = page(buyer=None)
    assert shown["buyer"] == ["(erased)", "Account ten_1"]
    assert page(invoice(buyer=None), None)["buyer"][0] == "(no billing profile)"
    assert shown["rows"] == page()["rows"]


def test_a_statement_says_that_nothing_is_due() -> None:
    used = row(3, FEMTO_PER_CENT)
    drawn = (Adjustment("prepaid", str(-3 * FEMTO_PER_CENT)),)
    shown = page(invoice(basis(used, kind="statement", adjustments=drawn), due_at=None))
    assert shown["title"] == "Statement"
    assert "Nothing is due." in " ".join(shown["notes"])
    assert [each["text"] for each in shown["sums"]] == ["Sum before tax", "Total"]
    assert "Due" not in {fact["name"] for fact in shown["facts"]}


def test_a_draft_says_so_and_has_no_proof() -> None:
    draft = page_of(invoice(number="DRAFT"), BUYER)
    assert (draft["draft"], draft["proof"]) == (True, [])
    assert "Draft" in words_of(pdf_of(draft, 0))
    assert "Draft" in " ".join(Words(html_of(draft)).said)


def test_the_pdf_is_an_archive_that_is_tagged_and_carries_what_was_signed(tmp_path: Path) -> None:
    attachments = (signed_document('{"å": 1}'), receipts_bundle(b"PK\x03\x04" + bytes(range(256))))
    pdf = pdf_of(page(), 1_796_200_200, attachments)
    reader = PdfReader(BytesIO(pdf))
    metadata = reader.trailer["/Root"]["/Metadata"].get_object().get_data().decode()
    assert "<pdfaid:part>3</pdfaid:part>" in metadata
    assert "<pdfaid:conformance>A</pdfaid:conformance>" in metadata
    assert "/StructTreeRoot" in reader.trailer["/Root"]
    assert reader.trailer["/Root"]["/MarkInfo"]["/Marked"]
    file = tmp_path / "invoice.pdf"
    file.write_bytes(pdf)
    assert attached_to(file) == {
        DOCUMENT_NAME: attachments[0].content,
        BUNDLE_NAME: attachments[1].content,
    }
    assert pdf_of(page(), 1_796_200_200, attachments) == pdf, "the same again"


def test_what_is_no_pdf_is_refused_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "invoice.pdf"
    whole = pdf_of(page(), 0, (signed_document("{}"),))
    for content in (b"", b"%PDF-1.7\n", whole[: len(whole) // 2]):
        file.write_bytes(content)
        with pytest.raises(BundleInvalid, match=r"invoice\.pdf"):
            attached_to(file)


def test_a_character_without_a_font_is_told_with_what_to_install() -> None:
    private = Party("Name \U000f0000", "", "SE")  # a private-use character, which no font has
    with pytest.raises(DocumentUnprintable, match="fonts-noto"):
        pdf_of(page(buyer=private), 0)
    assert "\U000f0000" in html_of(page(buyer=private))


def test_hundreds_of_lines_make_pages_with_a_heading_each() -> None:
    many = invoice(basis(*(row(n + 1, FEMTO_PER_CENT, model=f"model-{n}") for n in range(150)), terms=TERMS))
    sheets = [sheet.extract_text() for sheet in PdfReader(BytesIO(pdf_of(page(many), 0))).pages]
    assert len(sheets) > 2
    assert all("Price per 1M" in text for text in sheets[:3])
    assert "model-149" in " ".join(sheets)


@given(st.lists(st.integers(1, 10**15), min_size=1, max_size=4))
def test_the_parts_of_the_bar_fill_it(amounts: list[int]) -> None:
    kinds = ("hit", "owed", "write", "miss")
    drawn = bar([Share(kind, amount, kind) for kind, amount in zip(kinds, amounts, strict=False)])
    places = [part.split('"') for part in drawn.split("<rect ")[1:]]
    ends = [(int(part[1]), int(part[1]) + int(part[3])) for part in places]
    assert ends[0][0] == 0
    assert ends[-1][1] == WIDTH
    assert all(before[1] == after[0] for before, after in pairwise(ends))
