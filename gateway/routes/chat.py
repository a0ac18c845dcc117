"""Chat completions, streamed and not, in DeepSeek's and OpenAI's shape."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
from litestar import post
from litestar.exceptions import InternalServerException
from litestar.response.base import ASGIResponse

from billing.receipts.memo import Memo
from billing.tenancy.api_key import KeyGrant, TrafficClass
from engine.api import GenerateRequest, Sampling
from gateway import sse
from gateway.admission.hold import Hold
from gateway.desk import AnyRequest, Desk, caller, desk_of
from gateway.errors import answer_of
from gateway.models import ServedModel
from gateway.permission import CLASS_HEADER, max_tokens, require_model, traffic_class
from gateway.pump import Order, Writer
from gateway.refusal import ClientGone
from gateway.replay import Replay
from gateway.response import EventStream, Source, Watch, drained
from gateway.retries import Sent
from gateway.settle import Billed, Terms
from recipe.conversation import has_tools
from recipe.events import Event
from recipe.prompt import Prompt
from recipe.protocols.chat import AnswerHead, ChatRequest, ChatStream, answer, read

NONCE_BYTES: Final = 32
# Reading and encoding a body of this size takes long enough to be kept off the event loop.
THREAD_BODY_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """A body that has been read, rendered and found to fit the model."""

    chat: ChatRequest
    served: ServedModel
    prompt: Prompt
    max_tokens: int
    traffic_class: TrafficClass

    @property
    def ignored_params(self) -> tuple[str, ...]:
        """Parameters that had no effect, in the order of their names."""
        return tuple(sorted({*self.chat.ignored_params, *self.prompt.ignored_params}))


@post(["/v1/chat/completions", "/chat/completions"], status_code=200)
async def complete(request: AnyRequest) -> ASGIResponse:
    """Answer a conversation.

    Raises:
        Everything in `gateway.errors.TABLE` while the answer has not begun; afterwards it is an error frame.
    """
    desk = desk_of(request)
    grant = await caller(request, "inference")
    body = await _body(request)
    understand = partial(_understand, desk, grant, body, request.headers.get(CLASS_HEADER))
    asked = await asyncio.to_thread(understand) if len(body) > THREAD_BODY_BYTES else understand()
    for param in asked.ignored_params:
        desk.telemetry.ignored_params.labels(_label(param)).inc()
    sent = Sent(request.headers, request.url.path, grant, asked.chat.user_id, body)
    ask = await desk.retries.ask(sent)
    source: Source = await desk.retries.begin(_order(desk, grant, asked), ask)
    async with Watch(request, source) as watch:
        named = await watch.wait(source.admitted)
        request.scope["state"]["request_id"] = str(named.request_id)
        headers = _headers(asked, source)
        if isinstance(named, Hold):
            headers |= named.quota.headers
        return await (_stream if asked.chat.stream else _whole)(desk, source, watch, headers)


async def _body(request: AnyRequest) -> bytes:
    try:
        return await request.body()
    except InternalServerException as error:  # what Litestar makes of a client that leaves while it sends
        raise ClientGone from error


async def _stream(desk: Desk, source: Source, watch: Watch, headers: dict[str, str]) -> ASGIResponse:
    """Answer 200 when the engine has; or after a while, so that heartbeats can begin."""
    try:
        await watch.wait(source.started, desk.options.first_event_wait_s)
    except TimeoutError:
        source.begin()
    return EventStream(source, desk.options.heartbeat_interval_s, headers)


async def _whole(_: Desk, source: Source, watch: Watch, headers: dict[str, str]) -> ASGIResponse:
    await watch.wait(source.started)
    body = await watch.wait(drained(source.channel))
    return ASGIResponse(body=body, media_type="application/json", headers=headers, status_code=200)


def _headers(asked: Asked, source: Source) -> dict[str, str]:
    headers = {"idempotent-replayed": "true"} if isinstance(source, Replay) else {}
    if asked.ignored_params:
        headers["x-ignored-params"] = ", ".join(map(_label, asked.ignored_params))
    return headers


def _label(param: str) -> str:
    """A parameter's name fit for a header and a metric; the client may call it anything."""
    known = param.isascii() and param.isidentifier() and len(param) <= 40
    return param if known else "other"


def _understand(desk: Desk, grant: KeyGrant, body: bytes, class_header: str | None) -> Asked:
    chat = read(body)
    served = desk.catalog.find(chat.model)
    require_model(grant, served.name)
    # Conversations with tools come back sooner and more often.
    by_looks: TrafficClass = "agent" if has_tools(chat.conversation) else "chat"
    kept_as = traffic_class(grant, class_header, by_looks)
    prompt = served.recipe.render(chat)
    longest = max_tokens(grant, chat.max_tokens, served.recipe.max_tokens(chat, prompt))
    return Asked(chat, served, prompt, longest, kept_as)


def _order(desk: Desk, grant: KeyGrant, asked: Asked) -> Order:
    terms = Terms(
        grant=grant,
        model=asked.served.name,
        prompt_tokens=len(asked.prompt.token_ids),
        output_tokens_max=asked.max_tokens,
        traffic_class=asked.traffic_class,
        tier="flex" if asked.chat.service_tier == "flex" else "standard",
        user_id=asked.chat.user_id,
    )
    return Order(
        terms=terms,
        engine=asked.served.engine,
        parser=asked.served.recipe.parser(asked.prompt),
        generate=lambda terms, hold: _generate_request(desk, terms, asked, hold),
        writer=_writer(asked),
    )


def _generate_request(desk: Desk, terms: Terms, asked: Asked, hold: Hold) -> GenerateRequest:
    sampling = asked.prompt.sampling
    return GenerateRequest(
        request_id=str(hold.request_id),
        tenant=hold.tenant_id,
        scope=asked.chat.user_id,
        prompt_ids=asked.prompt.token_ids,
        sampling=Sampling(
            max_tokens=asked.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            stop_token_ids=asked.prompt.stop_token_ids,
        ),
        retention_class=terms.traffic_class,
        nonce=secrets.token_bytes(NONCE_BYTES),
        memo=_memo(desk, terms, hold),
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


def _writer(asked: Asked) -> Callable[[Hold], Writer]:
    def write(hold: Hold) -> Writer:
        head = AnswerHead(
            id=f"chatcmpl-{hold.request_id}",
            model=asked.served.name,
            created=int(hold.admitted_at.timestamp()),
            service_tier=asked.chat.service_tier,
        )
        if not asked.chat.stream:
            return WholeWriter(head)
        include_usage, thinking = asked.chat.include_usage, asked.prompt.starts_thinking
        return StreamWriter(ChatStream(head, include_usage=include_usage, thinking=thinking))

    return write


class StreamWriter:
    """Events as frames; the first delta carries the role alone."""

    def __init__(self, stream: ChatStream) -> None:
        self._stream = stream
        self._opened = False

    def events(self, events: Sequence[Event]) -> bytes:
        """See `gateway.pump.Writer`."""
        chunks = self._stream.deltas(events)
        if chunks and not self._opened:
            self._opened = True
            chunks.insert(0, self._stream.opening())
        return b"".join(map(sse.frame, chunks))

    def finish(self, events: Sequence[Event], billed: Billed) -> bytes:
        """See `gateway.pump.Writer`."""
        opening = b"" if self._opened else sse.frame(self._stream.opening())
        chunks = [*self._stream.deltas(events), *self._stream.closing(billed)]
        return opening + b"".join(map(sse.frame, chunks)) + sse.DONE

    def error(self, error: Exception) -> bytes:
        """See `gateway.pump.Writer`: an error frame, and no `[DONE]` after it."""
        return sse.frame(answer_of(error).body)


class WholeWriter:
    """All events as one JSON body."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._events: list[Event] = []

    def events(self, events: Sequence[Event]) -> bytes:
        """See `gateway.pump.Writer`; nothing can be shown yet."""
        self._events += events
        return b""

    def finish(self, events: Sequence[Event], billed: Billed) -> bytes:
        """See `gateway.pump.Writer`."""
        return msgspec.json.encode(answer(self._head, [*self._events, *events], billed))

    def error(self, error: Exception) -> bytes:
        """See `gateway.pump.Writer`; never asked for, as nothing is sent before the end."""
        return answer_of(error).body
