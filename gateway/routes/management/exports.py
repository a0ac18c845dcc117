"""Exports of the key's organisation: files too large to be answered at once, made in the background."""

from datetime import datetime, timedelta
from typing import Annotated, Final, Literal
from urllib.parse import urlencode

import msgspec
from litestar import delete, get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.response import File
from msgspec import Meta

from billing.interval import Interval
from billing.reports.export.files.link import LINK_S
from billing.reports.export.files.record import ExportRecord, Status
from billing.reports.export.order import MEDIA_TYPES, Content, ExportOrder, Form, Step
from billing.reports.selection import Selection
from billing.reports.usage_total import Dimension
from gateway.desk import AnyRequest, desk_of
from gateway.refusal import NotPermitted
from gateway.routes.management import edge
from gateway.routes.management.edge import After, Deleted, Instant, Listed, RowsMax

Texts = list[Annotated[str, Meta(min_length=1, max_length=400)]]


class NewExport(msgspec.Struct, forbid_unknown_fields=True):
    """What a file is to hold: requests rated in ``[since, until)`` and in every filter that is not empty.

    ``requests`` are told one by one, ``totals`` added up by the dimensions of ``by``, ``focus`` in FOCUS 1.2
    by days or hours (``step``). Days, and the offsets of instants, are those of ``zone``.
    """

    content: Content
    since: Instant
    until: Instant
    format: Form = "csv"
    zone: Annotated[str, Meta(max_length=100)] = "UTC"
    by: list[Dimension] = []
    step: Step = "day"
    project_ids: Texts = []
    api_key_ids: Texts = []
    models: Texts = []
    traffic_classes: Texts = []
    windows: Texts = []
    tiers: Texts = []
    statuses: Texts = []


class ExportShown(msgspec.Struct):
    """An export. When it is ``done``, ``url`` fetches its file until it ends, for whoever has it.

    ``reason`` says why the last attempt failed; while ``status`` is ``waiting`` there will be another.
    """

    id: str
    status: Status
    content: Content
    format: Form
    since: datetime
    until: datetime
    zone: str
    file_name: str
    created_at: datetime
    finished_at: datetime | None
    expires_at: datetime | None
    rows: int | None
    size_bytes: int | None
    sha256: str | None
    reason: str | None
    url: str | None
    url_ends_at: datetime | None
    object: Literal["organization.export"] = "organization.export"


@post("/exports")
async def create_export(request: AnyRequest, data: JSONBody[NewExport]) -> ExportShown:
    """Have an export made. Exports are made one at a time; ask again until it is done."""
    by, at = edge.manager(request), await edge.now(request)
    order = ExportOrder(
        content=data.content,
        form=data.format,
        interval=Interval(data.since, data.until),
        zone=data.zone,
        tenant_id=by.tenant_id,
        only=Selection(
            projects=tuple(data.project_ids),
            keys=tuple(data.api_key_ids),
            models=tuple(data.models),
            traffic_classes=tuple(data.traffic_classes),
            windows=tuple(data.windows),
            tiers=tuple(data.tiers),
            statuses=tuple(data.statuses),
        ),
        by=tuple(data.by),
        step=data.step,
    )
    return _shown(request, await edge.organization(request).exports.request(order, by.key_id, at), at)


@get("/exports")
async def list_exports(
    request: AnyRequest, after: After = None, limit: RowsMax = edge.ROWS_DEFAULT
) -> Listed[ExportShown]:
    """List exports."""
    at, page = await edge.now(request), edge.one_more(after, limit)
    rows = await edge.organization(request).exports.exports(edge.manager(request).tenant_id, page)
    return edge.listed(rows, limit, lambda record: _shown(request, record, at))


@get("/exports/{export_id:str}")
async def show_export(request: AnyRequest, export_id: FromPath[str]) -> ExportShown:
    """Show an export, with a fresh link when it is done."""
    at = await edge.now(request)
    record = await edge.organization(request).exports.export(export_id, edge.manager(request).tenant_id)
    return _shown(request, record, at)


@delete("/exports/{export_id:str}", status_code=200)
async def delete_export(request: AnyRequest, export_id: FromPath[str]) -> Deleted:
    """Delete an export and its file; one that is being made is not made any more."""
    by, at = edge.manager(request), await edge.now(request)
    await edge.organization(request).exports.delete(export_id, by.tenant_id, by.key_id, at)
    return Deleted(export_id, "organization.export")


@get("/v1/organization/exports/{export_id:str}/file", media_type="application/octet-stream")
async def fetch_file(
    request: AnyRequest,
    export_id: FromPath[str],
    expires: Annotated[int, QueryParameter(ge=0, le=2**40, description="Of the link.")],
    signature: Annotated[str, QueryParameter(max_length=64, description="Of the link.")],
) -> File:
    """Fetch the file of an export by its link, which needs no key."""
    exports = edge.organization(request).exports
    if not edge.organization(request).links.holds(export_id, expires, signature, await edge.now(request)):
        raise NotPermitted("this link is none of ours, or it has ended: show the export for a fresh one")
    record = await exports.export(export_id)
    return File(
        exports.file_of(record),
        filename=record.order.file_name,
        media_type=MEDIA_TYPES[record.order.form],
        headers={"cache-control": "private, no-store", "x-content-type-options": "nosniff"},
    )


def _shown(request: AnyRequest, record: ExportRecord, at: datetime) -> ExportShown:
    order = record.order
    url = ends_at = None
    if record.status == "done" and record.expires_at is not None:
        ends_at = min(at + timedelta(seconds=LINK_S), record.expires_at).replace(microsecond=0)
        expires = int(ends_at.timestamp())
        signed = {
            "expires": expires,
            "signature": desk_of(request).organization.links.sign(record.id, expires),
        }
        url = f"/v1/organization/exports/{record.id}/file?{urlencode(signed)}"
    return ExportShown(
        id=record.id,
        status=record.status,
        content=order.content,
        format=order.form,
        since=order.interval.since,
        until=order.interval.until,
        zone=order.zone,
        file_name=order.file_name,
        created_at=record.created_at,
        finished_at=record.finished_at,
        expires_at=record.expires_at,
        rows=record.rows,
        size_bytes=record.size_bytes,
        sha256=record.sha256,
        reason=record.reason,
        url=url,
        url_ends_at=ends_at,
    )


HANDLERS: Final = [create_export, list_exports, show_export, delete_export]
