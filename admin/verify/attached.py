"""An invoice as it is sent: its signed document, or a PDF that has it, and its receipts, attached."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
from pypdf import PdfReader
from pypdf.errors import PyPdfError

from billing.errors import BundleInvalid


def attached_to(pdf: Path) -> dict[str, bytes]:
    """Contents by name.

    Raises:
        BundleInvalid: the file cannot be read, is no PDF, or has two attachments of one name.
    """
    try:
        found = PdfReader(pdf).attachments
        contents = {name: list(found[name]) for name in found}
    except (OSError, PyPdfError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleInvalid(f"not a PDF that can be read: {error}", pdf.name, None) from error
    for name, versions in contents.items():
        if len(versions) != 1:
            raise BundleInvalid(f"{len(versions)} attachments are called {name}", pdf.name, None)
    return {name: versions[0] for name, versions in contents.items()}


class _Payload(msgspec.Struct):
    number: str
    currency: str
    total_cents: int


class _Document(msgspec.Struct):
    payload: _Payload


@dataclass(frozen=True, slots=True)
class Paper:
    """What was sent; nothing is verified. ``bundle`` is a zip, None where there is none."""

    number: str
    total: str
    document: bytes
    bundle: bytes | None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a document, or a PDF with just one attached.

        Raises:
            BundleInvalid: it is neither.
        """
        try:
            is_pdf = path.suffix.lower() == ".pdf"
            files = attached_to(path) if is_pdf else {"invoice.json": path.read_bytes()}
            (document,) = (content for name, content in files.items() if name.endswith(".json"))
            said = msgspec.json.decode(document, type=_Document).payload
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise BundleInvalid(f"no invoice: {error}", path.name) from error
        bundle = next((content for name, content in files.items() if name.endswith(".zip")), None)
        units, cents = divmod(said.total_cents, 100)
        return cls(said.number, f"{units}.{cents:02d} {said.currency}", document, bundle)
