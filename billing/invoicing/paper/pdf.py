"""A document as PDF by Typst: tagged, PDF/A-3a, with what is signed, and its receipts, attached."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

import typst

from billing.errors import DocumentUnprintable
from billing.invoicing.paper.page import Page

STANDARD: Final = "a-3a"
DOCUMENT_NAME: Final = "document.json"
BUNDLE_NAME: Final = "bundle.zip"

_TEMPLATE: Final = "invoice.typ"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file in the PDF. ``relationship`` as PDF/A-3 has it: the page was made from its source."""

    name: str
    relationship: Literal["source", "data"]
    mime_type: str
    description: str
    content: bytes = field(repr=False)


def signed_document(text: str) -> Attachment:
    """The document as it was signed."""
    return Attachment(DOCUMENT_NAME, "source", "application/json", "the signed document", text.encode())


def receipts_bundle(content: bytes) -> Attachment:
    """The bundle that verifies the document, as zip."""
    words = "receipts, prices and keys to verify it by"
    return Attachment(BUNDLE_NAME, "data", "application/zip", words, content)


def pdf_of(page: Page, issued_at_s: int, attachments: Sequence[Attachment] = ()) -> bytes:
    """The PDF of a page; the same for the same arguments, fonts and version of Typst.

    Its fonts are Typst's own (Libertinus Serif: Latin, Greek, Cyrillic), behind them the machine's.

    Raises:
        DocumentUnprintable: a character that no font here has, which PDF/A does not allow.
    """
    described = [
        {name: value for name, value in asdict(each).items() if name != "content"} for each in attachments
    ]
    sources = {
        _TEMPLATE: (files(__package__) / _TEMPLATE).read_bytes(),
        "page.json": json.dumps(page).encode(),
        "attached.json": json.dumps(described).encode(),
        **{each.name: each.content for each in attachments},
    }
    with TemporaryDirectory(prefix="kvitto-pdf-") as folder:
        for name, content in sources.items():
            (Path(folder) / name).write_bytes(content)
        try:
            return typst.compile(
                Path(folder) / _TEMPLATE, format="pdf", pdf_standards=[STANDARD], timestamp=issued_at_s
            )
        except typst.TypstError as error:
            raise DocumentUnprintable(page["number"], str(error)) from error
