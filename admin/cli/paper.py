"""`kvitto invoice print`: a document as people read it, for the customer to keep."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Final

import typer

from admin.cli.options import DataDir, Json, directory

if TYPE_CHECKING:
    from admin.cli.output import Row
    from admin.cli.session import SigningDesk
    from billing.invoicing.invoice import Invoice
    from billing.invoicing.paper.pdf import Attachment

_FORMS: Final = {".pdf", ".html"}


def print_(
    number: Annotated[str, typer.Argument(help="Of the document, from `kvitto invoice list`.")],
    file: Annotated[Path, typer.Argument(help="A name ending in .pdf or .html; what is there is replaced.")],
    receipts: Annotated[
        bool,
        typer.Option("--receipts/--no-receipts", help="Attach the receipts that verify it to the PDF."),
    ] = True,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Write a document as PDF, with what was signed and its receipts attached, or as HTML.

    Example: kvitto invoice print 8F3A21C0-2 invoice.pdf && kvitto verify invoice invoice.pdf
    """
    from admin.cli import session
    from admin.cli.output import console, print_json

    if file.suffix.lower() not in _FORMS:
        raise typer.BadParameter(f"{file.name} ends neither in .pdf nor in .html", param_hint="FILE")

    async def work() -> "Row":
        if file.suffix.lower() == ".html":
            async with session.books(directory(data_dir)) as books:
                found = await books.invoicing.invoice(number)
            content = _html(found)
        else:
            async with session.signing(directory(data_dir)) as (books, desk):
                found = await books.invoicing.invoice(number)
                content = _pdf(found, await _attached(desk, found, receipts=receipts))
        _replace(file, content)
        return {"number": found.number, "path": file, "bytes": len(content)}

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        console().print(f"{file} shows {row['number']}.", markup=False)


async def _attached(desk: "SigningDesk", found: "Invoice", *, receipts: bool) -> "list[Attachment]":
    """What the PDF carries: its document, and the bundle of its customer as it is now."""
    from admin import clock
    from billing.invoicing.paper.pdf import BUNDLE_NAME, receipts_bundle, signed_document

    attached = [signed_document(found.text)]
    if receipts:
        with TemporaryDirectory(prefix="kvitto-print-") as folder:
            zipped = Path(folder) / BUNDLE_NAME
            await desk.bundles.write(found.tenant_id, zipped, clock.now())
            attached.append(receipts_bundle(zipped.read_bytes()))
    return attached


def _html(found: "Invoice") -> bytes:
    from billing.invoicing.paper.html import html_of
    from billing.invoicing.paper.page import page_of
    from engine.proof.signed import key_id_in

    return html_of(page_of(found.document, found.buyer, key_id_in(found.text))).encode()


def _pdf(found: "Invoice", attached: "list[Attachment]") -> bytes:
    from billing.invoicing.paper.page import page_of
    from billing.invoicing.paper.pdf import pdf_of
    from engine.proof.signed import key_id_in

    page = page_of(found.document, found.buyer, key_id_in(found.text))
    return pdf_of(page, int(found.issued_at.timestamp()), attached)


def _replace(file: Path, content: bytes) -> None:
    """The whole file or, whatever happens, what was there before; raises CommandFailed where it cannot be."""
    from admin.cli.errors import CommandFailed

    try:
        with TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent) as folder:
            made = Path(folder) / file.name
            made.write_bytes(content)
            made.replace(file)
    except OSError as error:
        raise CommandFailed(f"{file} cannot be written: {error.strerror or error}") from error
