"""Webhooks of the key's organisation: where it is told what happens to it, and what became of telling it.

Each notice is posted with the headers of Standard Webhooks, at least once, under one id for good, in no
promised order. It is tried for three days; who answers 410, or takes nothing for long, is disabled.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, cast

import msgspec
from litestar import delete, get, patch, post
from litestar.params import FromPath, JSONBody
from msgspec import UNSET, Meta, UnsetType

from billing.errors import TenancyInvalid
from billing.interval import Interval
from billing.notify.endpoint import Delivery, Endpoint, IssuedEndpoint, State
from billing.notify.kind import Kind
from billing.notify.notice import KeptNotice
from billing.notify.webhooks import EndpointChanges
from gateway.desk import AnyRequest
from gateway.destinations import URL_CHARACTERS_MAX
from gateway.routes.management import edge
from gateway.routes.management.edge import After, Deleted, Instant, Listed, RowsMax
from gateway.routes.management.keys import Rotation

Url = Annotated[str, Meta(min_length=1, max_length=URL_CHARACTERS_MAX)]


class WebhookShown(msgspec.Struct):
    """An endpoint, never with its secret. ``kinds`` null: all.

    ``disabled_for`` says why, where that was not its owner's doing; ``failing_since`` since when it has taken
    nothing.
    """

    id: str
    url: str
    kinds: list[Kind] | None
    enabled: bool
    disabled_for: str | None
    failing_since: datetime | None
    created_at: datetime
    object: Literal["organization.webhook"] = "organization.webhook"


class WebhookIssued(WebhookShown, kw_only=True):
    """An endpoint with its new secret (``whsec_…``), which is shown this once."""

    secret: str


class NewWebhook(msgspec.Struct, forbid_unknown_fields=True):
    """An address on the internet, ``https://…``, and the kinds of notices it wants; left out: all."""

    url: Url
    kinds: list[Kind] | None = None


class WebhookPatch(msgspec.Struct, forbid_unknown_fields=True):
    """What is to change. A disabled endpoint gets nothing, and what is on its way to it is given up."""

    url: Url | UnsetType = UNSET
    kinds: list[Kind] | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET


class AttemptShown(msgspec.Struct):
    """``status`` null: there was no answer; ``error`` null: it was taken."""

    at: datetime
    duration_ms: int
    status: int | None
    error: str | None


class DeliveryShown(msgspec.Struct):
    """What became of a notice, named by its ``id``. ``next_attempt_at`` null: there will be none."""

    id: str
    kind: Kind
    at: datetime
    state: State
    next_attempt_at: datetime | None
    attempts: list[AttemptShown]
    object: Literal["organization.webhook.delivery"] = "organization.webhook.delivery"


class Replay(msgspec.Struct, forbid_unknown_fields=True):
    """One notice by its id, or all that the endpoint wants of ``[since, until)``."""

    notice_id: str | None = None
    since: Instant | None = None
    until: Instant | None = None


class Replayed(msgspec.Struct):
    """How many notices are delivered once more."""

    deliveries: int
    object: Literal["organization.webhook.replay"] = "organization.webhook.replay"


class NoticeShown(msgspec.Struct):
    """Something the organisation was told, with an endpoint or without. Amounts are decimal texts."""

    id: str
    kind: Kind
    at: datetime
    data: dict[str, Any]
    object: Literal["organization.notice"] = "organization.notice"


@get("/webhooks")
async def list_webhooks(
    request: AnyRequest, after: After = None, limit: RowsMax = edge.ROWS_DEFAULT
) -> Listed[WebhookShown]:
    """List webhooks, disabled ones too."""
    page = edge.one_more(after, limit)
    rows = await edge.organization(request).webhooks.endpoints(edge.manager(request).tenant_id, page)
    return edge.listed(rows, limit, _shown)


@post("/webhooks")
async def add_webhook(request: AnyRequest, data: JSONBody[NewWebhook]) -> WebhookIssued:
    """Add a webhook. The secret that its notices are signed with is in this answer and nowhere else."""
    by = edge.manager(request)
    at = await edge.now(request)
    kinds = None if data.kinds is None else frozenset(data.kinds)
    webhooks = edge.organization(request).webhooks
    return _issued(await webhooks.add(by.tenant_id, data.url, kinds, at, actor=by.key_id))


@get("/webhooks/{webhook_id:str}")
async def show_webhook(request: AnyRequest, webhook_id: FromPath[str]) -> WebhookShown:
    """Show a webhook."""
    webhooks = edge.organization(request).webhooks
    return _shown(await webhooks.endpoint(webhook_id, edge.manager(request).tenant_id))


@patch("/webhooks/{webhook_id:str}")
async def change_webhook(
    request: AnyRequest, webhook_id: FromPath[str], data: JSONBody[WebhookPatch]
) -> WebhookShown:
    """Change a webhook, disable it, enable it again."""
    by = edge.manager(request)
    at = await edge.now(request)
    given = {field: value for field in data.__struct_fields__ if (value := getattr(data, field)) is not UNSET}
    if given.get("kinds") is not None:
        given["kinds"] = frozenset(given["kinds"])
    changes = cast("EndpointChanges", given)
    webhooks = edge.organization(request).webhooks
    return _shown(await webhooks.change(webhook_id, changes, at, actor=by.key_id, tenant_id=by.tenant_id))


@post("/webhooks/{webhook_id:str}/rotate", status_code=200)
async def rotate_webhook(
    request: AnyRequest, webhook_id: FromPath[str], data: JSONBody[Rotation]
) -> WebhookIssued:
    """Give a webhook a new secret. Those before sign beside it for the grace."""
    by = edge.manager(request)
    at = await edge.now(request)
    grace = timedelta(seconds=data.grace_s)
    webhooks = edge.organization(request).webhooks
    return _issued(await webhooks.rotate(webhook_id, grace, at, actor=by.key_id, tenant_id=by.tenant_id))


@delete("/webhooks/{webhook_id:str}", status_code=200)
async def remove_webhook(request: AnyRequest, webhook_id: FromPath[str]) -> Deleted:
    """Remove a webhook, its secrets, and the record of its deliveries."""
    by = edge.manager(request)
    at = await edge.now(request)
    webhooks = edge.organization(request).webhooks
    removed = await webhooks.remove(webhook_id, at, actor=by.key_id, tenant_id=by.tenant_id)
    return Deleted(removed.id, "organization.webhook")


@post("/webhooks/{webhook_id:str}/test")
async def test_webhook(request: AnyRequest, webhook_id: FromPath[str]) -> DeliveryShown:
    """Send a notice of kind `webhook.test` to this webhook alone. Its deliveries say what became of it."""
    by = edge.manager(request)
    at = await edge.now(request)
    webhooks = edge.organization(request).webhooks
    notice_id = await webhooks.test(webhook_id, at, tenant_id=by.tenant_id)
    return _delivery(Delivery(notice_id, "webhook.test", at, webhook_id, "pending", at))


@get("/webhooks/{webhook_id:str}/deliveries")
async def list_deliveries(
    request: AnyRequest, webhook_id: FromPath[str], after: After = None, limit: RowsMax = edge.ROWS_DEFAULT
) -> Listed[DeliveryShown]:
    """List what became of notices at a webhook, newest first, with every attempt."""
    page = edge.one_more(after, limit)
    webhooks = edge.organization(request).webhooks
    rows = await webhooks.deliveries(webhook_id, page, tenant_id=edge.manager(request).tenant_id)
    return edge.listed(rows, limit, _delivery)


@post("/webhooks/{webhook_id:str}/replay", status_code=200)
async def replay(request: AnyRequest, webhook_id: FromPath[str], data: JSONBody[Replay]) -> Replayed:
    """Deliver notices once more, each under its old id, also from before the webhook was there."""
    by = edge.manager(request)
    at = await edge.now(request)
    webhooks = edge.organization(request).webhooks
    return Replayed(await webhooks.replay(webhook_id, _asked(data, at), at, tenant_id=by.tenant_id))


@get("/notices")
async def list_notices(
    request: AnyRequest, after: After = None, limit: RowsMax = edge.ROWS_DEFAULT
) -> Listed[NoticeShown]:
    """List what the organisation was told."""
    page = edge.one_more(after, limit)
    rows = await edge.organization(request).notices.notices(edge.manager(request).tenant_id, page)
    return edge.listed(rows, limit, _notice)


def _asked(data: Replay, at: datetime) -> str | Interval:
    if data.notice_id is not None and data.since is None and data.until is None:
        return data.notice_id
    if data.notice_id is not None or data.since is None:
        raise TenancyInvalid("since", "name a notice, or the beginning of an interval")
    return Interval(data.since, data.until or at)


def _shown(endpoint: Endpoint) -> WebhookShown:
    return WebhookShown(
        id=endpoint.id,
        url=endpoint.url,
        kinds=None if endpoint.kinds is None else sorted(endpoint.kinds),
        enabled=endpoint.enabled,
        disabled_for=endpoint.disabled_for,
        failing_since=endpoint.failing_since,
        created_at=endpoint.created_at,
    )


def _issued(issued: IssuedEndpoint) -> WebhookIssued:
    return WebhookIssued(**msgspec.structs.asdict(_shown(issued.endpoint)), secret=issued.secret)


def _delivery(delivery: Delivery) -> DeliveryShown:
    return DeliveryShown(
        id=delivery.notice_id,
        kind=delivery.kind,
        at=delivery.at,
        state=delivery.state,
        next_attempt_at=delivery.due_at if delivery.state == "pending" else None,
        attempts=[
            AttemptShown(made.at, made.duration_ms, made.status, made.error) for made in delivery.attempts
        ],
    )


def _notice(kept: KeptNotice) -> NoticeShown:
    return NoticeShown(id=kept.id, kind=kept.notice.kind, at=kept.notice.at, data=dict(kept.notice.facts))


HANDLERS: Final = [
    list_webhooks,
    add_webhook,
    show_webhook,
    change_webhook,
    rotate_webhook,
    remove_webhook,
    test_webhook,
    list_deliveries,
    replay,
    list_notices,
]
