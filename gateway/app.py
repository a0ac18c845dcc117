"""The application: wired parts in, Litestar out."""

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from litestar import Litestar, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import Message, Scope

from billing.alerts.service import Alerts
from billing.catalog.service import Aliasing
from billing.db.transaction import Database
from billing.invoicing.service import Invoicing
from billing.ledger.service import Ledger
from billing.notify.service import Notices
from billing.notify.webhooks import Webhooks
from billing.payments.inbox import Inbox
from billing.pricing.document import row_sha256
from billing.pricing.service import Prices
from billing.receipts.log.service import ReceiptLog
from billing.receipts.service import Receipts
from billing.reports.export.files.link import Links
from billing.reports.export.files.service import ExportFiles
from billing.reports.service import Reports
from billing.settlement.batch import Settlement
from billing.tenancy.projects.service import Projects
from billing.tenancy.rules.service import Rules
from billing.tenancy.service import Tenancy
from billing.tenancy.users.service import Users
from engine.api import Engine
from gateway import browsers
from gateway.admission.admit import Admission
from gateway.admission.leases import Leases
from gateway.admission.rebuild import Projections
from gateway.admission.share import AdmissionByShare
from gateway.desk import AnyRequest, Desk, Organization, StripeInbox
from gateway.destinations import url_fault
from gateway.errors import Answer, answer_of
from gateway.images import ImageReader
from gateway.instant import ValkeyClock
from gateway.kept import Kept
from gateway.models import Catalog, ServedModel
from gateway.options import GatewayOptions
from gateway.paths import speaks_anthropic
from gateway.public_log import PublicLog
from gateway.pump import PumpLimits, Pumps
from gateway.refusal import BodyTooLarge
from gateway.retries import Retries
from gateway.routes import (
    balance,
    chat,
    completions,
    description,
    health,
    management,
    messages,
    models,
    receipts,
    responses,
    stripe,
)
from gateway.routes.management import exports
from gateway.settle import Books, Settler
from gateway.snapshot import AliasSnapshot, KeySnapshot, PriceSnapshot
from gateway.telemetry import EngineCollector, MemoCollector, Telemetry, log
from gateway.valkey import Valkey
from gateway.vault import WEBHOOKS, Vault
from recipe.registry import Recipe


@dataclass(frozen=True, slots=True)
class Parts:
    """What a gateway is made of; the application opens and closes them.

    ``answer_secret`` is the deployment's: answers kept for retries are encrypted under keys derived from it,
    links to exports are signed by one. ``exports_folder`` is where the jobs put their files.
    ``deployment_ring``: text of its public keys (`engine.proof.ring`), as witnesses get it.
    Without ``images``, images are read as the options say.
    ``inbox``: of Stripe's webhooks, which are served only with it.
    """

    options: GatewayOptions
    database: Database
    tenancy: Tenancy
    prices: Prices
    ledger: Ledger
    settlement: Settlement
    valkey: Valkey
    engine: Engine
    recipe: Recipe
    answer_secret: bytes = field(repr=False)
    deployment_ring: str
    exports_folder: Path | None = None
    images: ImageReader | None = None
    inbox: Inbox | None = None


def build(parts: Parts) -> Litestar:
    """Make the application of one process. It describes its management and accepts no cookies."""
    options = _with_room_for_images(parts)
    telemetry = Telemetry()
    clock = ValkeyClock(parts.valkey)
    admission = _admission(parts, clock, telemetry)
    leases = Leases(admission, options.lease_renew_interval_s)
    telemetry.registry.register(EngineCollector(parts.engine))
    telemetry.registry.register(MemoCollector(parts.recipe.memo))
    telemetry.in_flight.set_function(lambda: len(leases))
    keys = KeySnapshot(
        parts.tenancy, parts.valkey, age_max_s=options.key_age_max_s, keys_max=options.keys_max
    )
    prices = PriceSnapshot(parts.prices, refresh_interval_s=options.price_refresh_interval_s)
    aliases = AliasSnapshot(Aliasing(parts.database), refresh_interval_s=options.price_refresh_interval_s)
    projections = Projections(admission, parts.ledger, Reports(parts.database))
    books = Books(projections, parts.settlement, prices)
    settler = Settler(admission, leases, books, clock, telemetry, options.request_deadline_s)
    pumps = Pumps(settler, telemetry, PumpLimits(options.request_deadline_s, options.channel_frames_max))
    kept = Kept(parts.valkey, Vault(parts.answer_secret), lease_s=options.lease_s)
    desk = Desk(
        options=options,
        keys=keys,
        prices=prices,
        catalog=Catalog((ServedModel(parts.recipe.served_name, parts.recipe, parts.engine),), aliases),
        ledger=parts.ledger,
        valkey=parts.valkey,
        pumps=pumps,
        retries=Retries(pumps, settler, kept, telemetry, options),
        images=parts.images or ImageReader(options.images, options.fetching),
        telemetry=telemetry,
        organization=_organization(parts, clock),
        receipts=Receipts(parts.database),
        log=PublicLog(ReceiptLog(parts.database), parts.deployment_ring),
        stripe=None if parts.inbox is None else StripeInbox(parts.inbox, admission),
    )
    app = Litestar(
        [
            chat.complete,
            messages.converse,
            messages.count_tokens,
            completions.complete,
            responses.respond,
            responses.count,
            models.list_models,
            models.show_model,
            balance.show_balance,
            *receipts.HANDLERS,
            health.live,
            health.ready,
            health.metrics,
            management.router(),
            management.readers_router(),
            exports.fetch_file,
            description.describe,
            description.reference,
            *([stripe.receive] if parts.inbox is not None else []),
        ],
        lifespan=[_lifespan(parts, desk, leases)],
        exception_handlers={HTTPException: _refuse, Exception: _refuse},
        before_send=[_mark],
        request_max_body_size=options.body_bytes_max,
        openapi_config=None,  # `gateway.routes.description` says what there is
        logging_config=None,  # the process's main owns logging
    )
    app.state.desk = desk
    app.asgi_handler = browsers.Preflights(app.asgi_handler)
    return app


def _with_room_for_images(parts: Parts) -> GatewayOptions:
    """Options by which a body may hold all the images that a request may, in base64, if they are read."""
    if not parts.recipe.reads_images:
        return parts.options
    room = parts.options.images.request_bytes_max * 4 // 3
    return replace(parts.options, body_bytes_max=parts.options.body_bytes_max + room)


def _admission(parts: Parts, clock: ValkeyClock, telemetry: Telemetry) -> Admission:
    options, valkey = parts.options, parts.valkey
    telemetry.valkey_lost.labels(options.valkey_lost).set(1)
    lease_s, retry_after_s = options.lease_s, options.retry_after_s
    if options.valkey_lost == "refuse":
        return Admission(valkey, lease_s=lease_s, retry_after_s=retry_after_s)
    counter = telemetry.admitted_by_share
    return AdmissionByShare(
        valkey, clock, options.replicas, counter, lease_s=lease_s, retry_after_s=retry_after_s
    )


def _organization(parts: Parts, clock: ValkeyClock) -> Organization:
    database = parts.database
    vault = Vault(parts.answer_secret, WEBHOOKS)
    fault = partial(url_fault, allowed=parts.options.private_destinations)
    return Organization(
        tenancy=parts.tenancy,
        projects=Projects(database),
        users=Users(database),
        rules=Rules(database),
        webhooks=Webhooks(database, vault, fault),
        notices=Notices(database),
        alerts=Alerts(database),
        reports=Reports(database),
        exports=ExportFiles(database, parts.exports_folder),
        links=Links(parts.answer_secret),
        invoicing=Invoicing(database, row_sha256),
        clock=clock,
    )


def _lifespan(
    parts: Parts, desk: Desk, leases: Leases
) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:  # closes in reverse, each whatever became of the others
            stack.push_async_callback(parts.database.close)
            stack.push_async_callback(parts.valkey.close)
            await parts.settlement.start()
            stack.push_async_callback(parts.settlement.close)
            await parts.engine.open()
            stack.push_async_callback(parts.engine.close)
            await desk.images.open()
            stack.push_async_callback(desk.images.close)
            await desk.catalog.aliases.attempt()  # so that no name is unknown for want of a reading
            for task in (leases, desk.keys, desk.prices, desk.catalog.aliases, desk.retries):
                task.start()
                stack.push_async_callback(task.close)
            stack.push_async_callback(desk.pumps.drain, desk.options.drain_s)
            yield

    return lifespan


def _refuse(request: AnyRequest, error: Exception) -> Response[bytes]:
    """Answer an error by the table, in the shape of who asks; what Litestar refuses keeps its status."""
    answer = _framework_answer(request, error) if isinstance(error, HTTPException) else answer_of(error)
    if answer.status == 500:
        log.error("internal_error", path=request.url.path, exc_info=error)
    headers = dict(answer.headers)
    if answer.retry_after_s is not None:
        headers["retry-after"] = str(answer.retry_after_s)
    if answer.status == 401:
        headers["www-authenticate"] = "Bearer"
    status, body = answer.status, answer.body
    if speaks_anthropic(request.url.path, request.headers):
        status, body = answer.anthropic_status, answer.anthropic(_request_id(request.scope))
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def _framework_answer(request: AnyRequest, error: HTTPException) -> Answer:
    status = error.status_code
    if status == 413:
        return answer_of(BodyTooLarge(request.app.state.desk.options.body_bytes_max))
    if status == 404:
        message = f"there is nothing at {request.method} {request.url.path}"
        return Answer(404, "invalid_request_error", message, "not_found")
    if status == 405:
        message = f"{request.url.path} does not answer {request.method}"
        return Answer(405, "invalid_request_error", message, "method_not_allowed")
    if status >= 500:
        return answer_of(error)
    if isinstance(error, ValidationException) and isinstance(error.extra, list) and error.extra:
        fault: dict[str, str] = error.extra[0]
        param = fault.get("key")
        where = None if param == "data" else param  # the body as a whole
        return Answer(400, "invalid_request_error", fault["message"], "invalid_parameter", where)
    return Answer(status, "invalid_request_error", error.detail, "invalid_request")


def _request_id(scope: Scope) -> str:
    """The id that admission gave a request, else one of its own, which nobody else knows."""
    made: str = scope["state"].setdefault("request_id", str(uuid.uuid4()))
    return made


async def _mark(message: Message, scope: Scope) -> None:
    """Put its id on every answer, under Anthropic's name too, and who may read it; count it."""
    if message["type"] != "http.response.start":
        return
    request_id = _request_id(scope).encode()
    message["headers"] = [
        *message.get("headers", ()),
        *browsers.sharing(scope["path"]),
        (b"x-request-id", request_id),
        (b"request-id", request_id),
    ]
    desk: Desk = scope["litestar_app"].state.desk
    desk.telemetry.requests.labels(scope.get("path_template") or "unrouted", message["status"]).inc()
