"""One way from body to answer, for every surface."""

from functools import partial
from typing import Final

from litestar.exceptions import InternalServerException
from litestar.response.base import ASGIResponse

from billing.receipts.memo import Memo
from billing.tenancy.api_key import KeyGrant
from engine.api import Constraint, GenerateRequest, ImageInput, Sampling
from engine.proof.attestation import prompt_nonce
from gateway.admission.hold import Hold
from gateway.desk import AnyRequest, Desk, caller, desk_of
from gateway.drawn import Teller
from gateway.permission import CLASS_HEADER
from gateway.pump import Order
from gateway.reading import Read, understood
from gateway.refusal import ClientGone
from gateway.replay import Replay
from gateway.response import EventStream, Heartbeat, Source, Watch, drained
from gateway.retries import Sent
from gateway.settle import Terms
from gateway.surface import Asked, R, Surface

# A body may hold any number of names; clients read headers of a few kilobytes.
IGNORED_NAMED_MAX: Final = 32


async def answer(request: AnyRequest, surface: Surface[R]) -> ASGIResponse:
    """Answer a body of any surface.

    Raises:
        Everything in `gateway.errors.TABLE` while the answer has not begun; afterwards it is an error frame.
    """
    desk = desk_of(request)
    grant = await caller(request, "inference")
    body = await body_of(request)
    asked = await understood(desk, grant, surface, body, request.headers.get(CLASS_HEADER))
    for param in asked.ignored_params[:IGNORED_NAMED_MAX]:
        desk.telemetry.ignored(_label(param))
    sent = Sent(request.headers, request.url.path, grant, asked.request.user_id, body)
    ask = await desk.retries.ask(sent)
    source: Source = await desk.retries.begin(order_of(desk, grant, surface, asked), ask)
    async with Watch(request, source) as watch:
        named = await watch.wait(source.admitted)
        request.scope["state"]["request_id"] = str(named.request_id)
        headers = _headers(asked, source)
        if isinstance(named, Hold):
            headers |= named.quota.headers
        if asked.request.stream:
            return await _stream(desk, source, watch, headers, surface.heartbeat)
        return await _whole(source, watch, headers)


async def count(request: AnyRequest, surface: Surface[R]) -> int:
    """Count the tokens of a body's prompt, as `answer` would encode it.

    Raises as `understood` does.
    """
    desk = desk_of(request)
    grant = await caller(request, "inference")
    body = await body_of(request)
    asked = await understood(desk, grant, surface, body, None)
    return len(asked.prompt.token_ids)


async def body_of(request: AnyRequest) -> bytes:
    """Read the whole body; raises ClientGone when it ends too soon."""
    try:
        return await request.body()
    except InternalServerException as error:  # what Litestar makes of a client that leaves while it sends
        raise ClientGone from error


async def _stream(
    desk: Desk, source: Source, watch: Watch, headers: dict[str, str], heartbeat: bytes
) -> ASGIResponse:
    """Answer 200 when the engine has; or after a while, so that heartbeats can begin."""
    try:
        await watch.wait(source.started, desk.options.first_event_wait_s)
    except TimeoutError:
        source.begin()
    return EventStream(source, Heartbeat(heartbeat, desk.options.heartbeat_interval_s), headers)


async def _whole(source: Source, watch: Watch, headers: dict[str, str]) -> ASGIResponse:
    await watch.wait(source.started)
    body = await watch.wait(drained(source.channel))
    return ASGIResponse(body=body, media_type="application/json", headers=headers, status_code=200)


def _headers(asked: Asked[R], source: Source) -> dict[str, str]:
    headers = {"idempotent-replayed": "true"} if isinstance(source, Replay) else {}
    if asked.ignored_params:
        named = dict.fromkeys(map(_label, asked.ignored_params))
        headers["x-ignored-params"] = ", ".join(list(named)[:IGNORED_NAMED_MAX])
    return headers


def _label(param: str) -> str:
    """A parameter's name fit for a header and a metric; the client may call it anything."""
    known = param.isascii() and param.replace(".", "").isidentifier() and len(param) <= 40
    return param if known else "other"


def order_of(desk: Desk, grant: KeyGrant, surface: Surface[R], asked: Asked[R]) -> Order:
    """What a pump needs to serve it."""
    read = Read(grant, asked.request, asked.served, asked.traffic_class)
    return Order(
        terms=read.terms(len(asked.prompt.token_ids), asked.max_tokens),
        engine=asked.served.engine,
        parser=asked.served.recipe.parser(asked.prompt),
        generate=lambda terms, hold: _generate_request(desk, terms, asked, hold),
        writer=partial(surface.writer, asked),
        broken=surface.broken,
        teller=_teller(asked),
    )


def _teller(asked: Asked[R]) -> Teller | None:
    if asked.request.logprobs is None:
        return None
    return Teller(asked.served.recipe.tokenizer, asked.prompt.stop_token_ids)


def _generate_request(desk: Desk, terms: Terms, asked: Asked[R], hold: Hold) -> GenerateRequest:
    sampling, constraint = asked.prompt.sampling, asked.prompt.constraint
    return GenerateRequest(
        request_id=str(hold.request_id),
        tenant=hold.tenant_id,
        scope=asked.request.user_id,
        prompt_ids=asked.prompt.token_ids,
        sampling=Sampling(
            max_tokens=asked.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            top_k=sampling.top_k,
            stop_token_ids=asked.prompt.stop_token_ids,
            logprobs=asked.request.logprobs,
            constraint=None if constraint is None else Constraint(constraint.kind, constraint.text),
        ),
        retention_class=terms.traffic_class,
        nonce=prompt_nonce(terms.grant.nonce_secret, hold.request_id),
        memo=_memo(desk, terms, hold),
        images=tuple(
            ImageInput(one.offset, one.tokens, one.image.data, one.image.sha256)
            for one in asked.prompt.images
        ),
    )


def _memo(desk: Desk, terms: Terms, hold: Hold) -> str:
    book = desk.prices.book.of(hold.tenant_id)
    row = book.row(terms.model, terms.grant.currency, hold.admitted_at)
    ask = terms.answers
    return Memo(
        tenant_id=hold.tenant_id,
        key_id=terms.grant.key_id,
        model=terms.model,
        traffic_class=terms.traffic_class,
        price_row_id=row.id,
        tier=terms.tier,
        answers=None if ask is None else (ask.name.hex(), ask.body.hex()),
    ).to_text()
