"""`kvitto verify invoice`: a document with its receipts beside it, or attached to its PDF."""

import io
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from pypdf import PdfWriter

from billing.invoicing.document import InvoiceDocument
from billing.receipts.bundle import write_directory, write_zip
from engine.proof import signed
from tests.admin.cli.test_verify import kvitto
from tests.admin.verify.test_invoice import FIRST, HOUSE, SERVED, signed_file
from tests.bundles import WRITTEN_AT_S, contents_of, key_of

CONTENTS = contents_of(HOUSE, SERVED)
DOCUMENT = signed_file(FIRST).document


def pdf(path: Path, **attached: bytes) -> Path:
    writer = PdfWriter()
    writer.add_blank_page(100, 100)
    for name, content in attached.items():
        writer.add_attachment(name.replace("_", "."), content)
    writer.write(path)
    return path


def zipped() -> bytes:
    file = io.BytesIO()
    write_zip(file, CONTENTS, HOUSE.new, WRITTEN_AT_S)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_directory(tmp_path / "b", CONTENTS, HOUSE.new, WRITTEN_AT_S)
    (tmp_path / "I.json").write_text(DOCUMENT)
    return tmp_path


def test_a_document_is_derived_again_from_the_receipts_beside_it(folder: Path) -> None:
    status, out, err = kvitto("verify", "invoice", folder / "I.json", "--bundle", folder / "b", "--json")
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert (told["checks"]["invoice"], told["verified"]) == (FIRST.number, True)
    assert told["checks"]["total"].endswith(" USD")


def test_a_pdf_carries_its_document_and_its_receipts(folder: Path) -> None:
    path = pdf(folder / "I.pdf", document_json=DOCUMENT.encode(), bundle_zip=zipped())
    assert kvitto("verify", "invoice", path)[0] == 0
    alone = pdf(folder / "alone.pdf", document_json=DOCUMENT.encode())
    assert kvitto("verify", "invoice", alone)[0] == 2
    assert kvitto("verify", "invoice", alone, "--bundle", folder / "b")[0] == 0


def test_what_is_not_what_its_receipts_give_is_named(folder: Path) -> None:
    dearer = signed_file(carrying(1)).document
    (folder / "I.json").write_text(dearer)
    status, out, _ = kvitto("verify", "invoice", folder / "I.json", "--bundle", folder / "b", "--json")
    (found,) = json.loads(out)["findings"]
    assert (status, found["file"], found["step"]) == (1, f"invoices/{FIRST.number}.json", "lines")
    forged = signed.sign(key_of("stranger"), FIRST.to_payload())
    (folder / "I.json").write_text(forged)
    status, out, _ = kvitto("verify", "invoice", folder / "I.json", "--bundle", folder / "b", "--json")
    assert (status, json.loads(out)["findings"][0]["step"]) == (1, "form")


def carrying(femto: int) -> InvoiceDocument:
    """The first invoice, which carries more on than its usage leaves."""
    carried = str(int(FIRST.carried_out_femto) + femto)
    return msgspec.structs.replace(FIRST, carried_out_femto=carried)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"payload":{}}'])
def test_what_is_no_invoice_is_unreadable(folder: Path, content: bytes) -> None:
    (folder / "I.json").write_bytes(content)
    assert kvitto("verify", "invoice", folder / "I.json", "--bundle", folder / "b")[0] == 2
    (folder / "I.pdf").write_bytes(content)
    assert kvitto("verify", "invoice", folder / "I.pdf")[0] == 2


def test_a_pdf_with_two_documents_is_unreadable(folder: Path) -> None:
    path = pdf(folder / "I.pdf", a_json=DOCUMENT.encode(), b_json=DOCUMENT.encode(), bundle_zip=zipped())
    assert kvitto("verify", "invoice", path)[0] == 2


def test_a_bundle_has_its_invoices_derived_too(folder: Path) -> None:
    wrong = replace(CONTENTS, invoices=[signed_file(carrying(1))])
    write_directory(folder / "wrong", wrong, HOUSE.new, WRITTEN_AT_S)
    status, out, _ = kvitto("verify", "bundle", folder / "wrong", "--json")
    assert (status, json.loads(out)["findings"][0]["step"]) == (1, "lines")
