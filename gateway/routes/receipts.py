"""Receipts of a tenant's requests, and the log that they are sealed in, for anybody who watches it."""

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from litestar import Response, get
from litestar.params import FromPath, QueryParameter

from billing.errors import ReceiptMissing, ReceiptPending
from billing.pricing.book import PriceBook
from billing.pricing.document import placement_text, row_text
from billing.pricing.publication import REQUEST_MAX
from billing.receipts.document import ReceiptDocument
from billing.receipts.log.sequencer import Pace
from billing.receipts.receipt import Receipt
from billing.receipts.sealed import SealedReceipt
from billing.request_id import instant_of
from billing.tenancy.api_key import KeyGrant
from gateway import paths
from gateway.desk import AnyRequest, caller, desk_of
from gateway.public_log import HEADS_MAX, PublicLog

SEALED_EVERY: Final = timedelta(hours=1)
RETRY_AFTER_S: Final = 3_600

_FRESH: Final = "public, max-age=5"
_FOR_GOOD: Final = "public, max-age=31536000, immutable"
_PRIVATE: Final = "private, no-store"

Size = Annotated[int, QueryParameter(ge=0, le=2**53 - 1)]
After = Annotated[int, QueryParameter(ge=-1, le=2**53 - 1)]
HeadsMax = Annotated[int, QueryParameter(ge=1, le=HEADS_MAX)]


@get(list(paths.RECEIPT))
async def show_receipt(request: AnyRequest, request_id: FromPath[str]) -> Response[bytes]:
    """Show the receipt of a request of the key's tenant, with all that it takes to check it.

    A key that reads usage or manages may see all of its tenant's, another those of its own requests. The
    nonce of the prompt goes to the key that has asked, and to no other.

    Raises:
        ReceiptMissing: no such request for this key; of another tenant's it is the same.
    """
    grant = await caller(request)
    named = _request_id(request_id)
    log = desk_of(request).log
    nonce = await _nonce(log, named, grant)
    if nonce is None and not grant.terms.scopes & {"usage_read", "management"}:
        raise ReceiptMissing(request_id)
    try:
        sealed, head = await log.log.inclusion(named, grant.tenant_id)
    except ReceiptPending:
        return await _pending(request, named)
    document = ReceiptDocument.read(sealed.receipt)
    body = {
        "object": "receipt",
        "state": "sealed",
        "request_id": str(named),
        "sealed": msgspec.Raw(sealed.to_line()),
        "head": _raw(head.document),
        "keys": _raw(log.keys),
        "certificates": [_raw(text) for text in await log.certificates_of(_key_ids(sealed))],
        **_prices(desk_of(request).prices.book, document),
        **({} if nonce is None else {"nonce": nonce.hex()}),
    }
    return _answer(body, _PRIVATE)


@get(list(paths.RECEIPT_LOG))
async def show_log(request: AnyRequest) -> Response[bytes]:
    """Show the newest signed head, and the keys that sign; nobody needs a key of ours for that."""
    log = _public(request)
    newest = await log.newest()
    head = None if newest is None else _raw(newest.document)
    return _answer({"object": "receipt.log", "head": head, "keys": _raw(log.keys)}, _FRESH)


@get(list(paths.LOG_HEADS))
async def list_heads(request: AnyRequest, after: After = -1, limit: HeadsMax = HEADS_MAX) -> Response[bytes]:
    """List signed heads of more than ``after`` leaves, the smallest first."""
    heads = await _public(request).heads(after, limit + 1)
    page = [_raw(head.document) for head in heads[:limit]]
    body = {"object": "list", "data": page, "has_more": len(heads) > limit}
    return _answer(body, _FOR_GOOD if body["has_more"] else _FRESH)


@get(list(paths.LOG_CONSISTENCY))
async def show_consistency(request: AnyRequest, first: Size, second: Size) -> Response[bytes]:
    """Prove that the log of one head begins with that of another (RFC 9162, 2.1.4).

    Raises:
        HeadMissing: there is no head of one of these sizes.
    """
    path = await _public(request).consistency(first, second)
    body = {"first": first, "second": second, "path": [each.hex() for each in path]}
    return _answer({"object": "receipt.log.consistency", **body}, _FOR_GOOD)


@get(list(paths.LOG_CERTIFICATES))
async def list_certificates(request: AnyRequest) -> Response[bytes]:
    """List the certificates of all workers' keys, as the deployment signed them."""
    certificates = await _public(request).certificates()
    return _answer({"object": "list", "data": [_raw(text) for text in certificates.values()]}, _FRESH)


HANDLERS: Final = [show_receipt, show_log, list_heads, show_consistency, list_certificates]


async def _pending(request: AnyRequest, request_id: UUID) -> Response[bytes]:
    """What is known of a request that is settled and not sealed yet."""
    known = (await desk_of(request).receipts.of([request_id]))[request_id]
    latest = instant_of(request_id) + REQUEST_MAX + Pace().late + SEALED_EVERY
    body = {
        "object": "receipt",
        "state": "pending",
        "request_id": str(request_id),
        "sealed_by": latest.isoformat().replace("+00:00", "Z"),
        **_known(known),
    }
    return _answer(body, _PRIVATE, {"retry-after": str(RETRY_AFTER_S)})


def _known(receipt: Receipt) -> dict[str, Any]:
    return {
        "usage": None if receipt.usage is None else asdict(receipt.usage),
        "workers": list(receipt.workers),
        "grade": receipt.grade,
        "finding": receipt.finding,
    }


async def _nonce(log: PublicLog, request_id: UUID, grant: KeyGrant) -> bytes | None:
    """The prompt's, if this very key has made the request."""
    try:
        return await log.log.prompt_nonce(request_id, grant.tenant_id, grant.key_id)
    except ReceiptMissing:
        return None


def _request_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ReceiptMissing(text) from None


def _prices(book: PriceBook, document: ReceiptDocument) -> dict[str, Any]:
    """The rows that may have rated it: public ones of its model, its tenant's, and of its tenant's plans."""
    tenant_id = document.tenant_id
    placements = [each for each in book.placements if each.tenant_id == tenant_id]
    plans = {None, *(each.plan for each in placements)}
    rows = (
        row
        for row in book.rows
        if (row.model, row.currency) == (document.model, document.currency)
        and row.tenant_id in (None, tenant_id)
        and row.plan in plans
        and row.effective_from <= document.rated_at
    )
    return {
        "prices": [_raw(row_text(row)) for row in rows],
        "placements": [_raw(placement_text(each)) for each in placements],
    }


class _Signer(msgspec.Struct):
    key_id: str


class _Signed(msgspec.Struct):
    attestations: list[_Signer]


def _key_ids(sealed: SealedReceipt) -> set[str]:
    return {each.key_id for each in msgspec.json.decode(sealed.receipt, type=_Signed).attestations}


def _public(request: AnyRequest) -> PublicLog:
    log = desk_of(request).log
    log.pace.take()
    return log


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def _answer(body: dict[str, Any], kept: str, headers: dict[str, str] | None = None) -> Response[bytes]:
    raw = msgspec.json.encode(body)
    return Response(raw, media_type="application/json", headers={"cache-control": kept, **(headers or {})})
