"""What the key's organisation was billed: invoices, statements, top-ups and credit notes. To be read."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from litestar import Response, get
from litestar.params import PathParameter

from billing.invoicing.document import DocumentKind
from billing.invoicing.invoice import Invoice, State
from gateway.desk import AnyRequest
from gateway.routes.management import edge
from gateway.routes.management.edge import After, Listed, RowsMax

Number = Annotated[str, PathParameter(description="Of the document, such as `8F3A21C0-2`.")]


class LineShown(msgspec.Struct):
    """Cents before tax at ``tax_rate`` percent."""

    kind: str
    text: str
    cents: int
    tax_rate: str


class InvoiceShown(msgspec.Struct):
    """Cents in ``currency``. ``total_cents`` has the tax, ``open_cents`` is still to be paid.

    ``credits`` names the document that a credit note gives back.
    """

    id: str
    document: DocumentKind
    state: State
    currency: str
    since: datetime
    until: datetime
    issued_at: datetime
    due_at: datetime | None
    total_cents: int
    credits_applied_cents: int
    due_cents: int
    paid_cents: int
    open_cents: int
    credits: str | None
    object: Literal["organization.invoice"] = "organization.invoice"


class InvoiceDetail(InvoiceShown):
    """The same, line by line."""

    lines: list[LineShown] = msgspec.field(default_factory=list)


@get("/invoices")
async def list_invoices(
    request: AnyRequest, after: After = None, limit: RowsMax = edge.ROWS_DEFAULT
) -> Listed[InvoiceShown]:
    """List documents in the order of their issue."""
    tenant_id = edge.manager(request).tenant_id
    found = await edge.organization(request).invoicing.invoices(tenant_id, edge.one_more(after, limit))
    return edge.listed(found, limit, lambda one: InvoiceShown(**_fields(one)))


@get("/invoices/{number:str}")
async def show_invoice(request: AnyRequest, number: Number) -> InvoiceDetail:
    """Show a document line by line, and how it is settled."""
    found = await _own(request, number)
    lines = [LineShown(each.kind, each.text, each.cents, each.tax_rate) for each in found.document.lines]
    return InvoiceDetail(**_fields(found), lines=lines)


@get("/invoices/{number:str}/document")
async def show_document(request: AnyRequest, number: Number) -> Response[bytes]:
    """Hand out the document as it was signed: `kvitto verify invoice` derives it again."""
    found = await _own(request, number)
    return Response(found.text.encode(), media_type="application/json")


async def _own(request: AnyRequest, number: str) -> Invoice:
    tenant_id = edge.manager(request).tenant_id
    return await edge.organization(request).invoicing.invoice(number, tenant_id)


def _fields(invoice: Invoice) -> dict[str, Any]:
    names = (
        *("state", "currency", "since", "until", "issued_at", "due_at", "total_cents"),
        *("credits_applied_cents", "due_cents", "paid_cents", "open_cents", "credits"),
    )
    return {
        "id": invoice.number,
        "document": invoice.kind,
        **{name: getattr(invoice, name) for name in names},
    }


HANDLERS: Final = [list_invoices, show_invoice, show_document]
