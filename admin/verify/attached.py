"""Files attached to a PDF, such as the bundle in an invoice."""

from pathlib import Path

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
