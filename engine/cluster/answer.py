"""What a worker's HTTP answers mean: pure functions from bytes to token chunks, parameters or a refusal.

The shapes are those of vLLM 0.32.0, `vllm/entrypoints/scale_out/token_in_token_out/protocol.py`; an error is
`{"error": {"message", "type", "param", "code"}}`, both as a body and as an event of a stream under HTTP 200.
"""

from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec

from engine.cluster.request import TokenChunk

EVENT_PREFIX: Final = b"data:"
STREAM_END: Final = b"[DONE]"
# What says that the request itself is at fault, so that no other worker would take it either.
REFUSALS: Final = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
}


class WorkerDown(Exception):
    """The worker cannot serve this request, another may. Stays inside the cluster: dispatch interprets it."""


class AnswerGarbled(Exception):
    """Not the shape of any answer. Stays inside the cluster: becomes `WorkerAnswerInvalid`, with a name."""


_TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Choice(msgspec.Struct):
    index: int
    token_ids: list[_TokenId] | None = None
    finish_reason: str | None = None


class _Error(msgspec.Struct):
    message: str


class _Prefill(msgspec.Struct):
    choices: list[_Choice]
    kv_transfer_params: dict[str, Any] | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: _Error | None = None


class _Refusal(msgspec.Struct):
    error: _Error


# Nesting a few thousand deep is not a decode error but a recursion one.
_UNREADABLE = (msgspec.DecodeError, RecursionError)
_prefill = msgspec.json.Decoder(_Prefill)
_event = msgspec.json.Decoder(_Event)
_refusal = msgspec.json.Decoder(_Refusal)


def read_prefill(body: bytes) -> dict[str, Any]:
    """Read the parameters that the worker's connector returned with a whole, unstreamed answer.

    The token in it is dropped: decode samples the first token again, and a client must see one of the two
    only.

    Raises:
        WorkerDown: the worker aborted the request (it drains, or its engine died) or answered with nothing.
        AnswerGarbled: not an answer, or one without returned parameters.
    """
    if not body.strip():
        raise WorkerDown("an empty answer")
    try:
        answer = _prefill.decode(body)
    except _UNREADABLE as error:
        raise AnswerGarbled(f"a prefill answer that cannot be read: {error}") from error
    if len(answer.choices) != 1:
        raise AnswerGarbled(f"a prefill answer with {len(answer.choices)} choices")
    choice = answer.choices[0]
    if choice.finish_reason not in {"stop", "length"} or not choice.token_ids:
        raise WorkerDown(f"the prefill ended with {choice.finish_reason!r} and no token")
    if answer.kv_transfer_params is None:
        raise AnswerGarbled("a prefill answer without kv_transfer_params")
    return answer.kv_transfer_params


def read_line(line: bytes) -> TokenChunk | None:
    """Read one line of a stream; None for lines that carry nothing (blank, comment, usage, end).

    Raises:
        WorkerDown: an error event, or tokens ended by anything but "stop" or "length". Tokens of such an
            event are dropped: nothing of it is billable.
        AnswerGarbled: not a line of such a stream.
    """
    line = line.strip()
    if not line or line.startswith(b":"):
        return None
    if not line.startswith(EVENT_PREFIX):
        raise AnswerGarbled(f"a line that is no event: {line[:80]!r}")
    payload = line[len(EVENT_PREFIX) :].strip()
    if payload == STREAM_END:
        return None
    try:
        event = _event.decode(payload)
    except _UNREADABLE as error:
        raise AnswerGarbled(f"an event that cannot be read: {error}") from error
    if event.error is not None:
        raise WorkerDown(f"an error event: {event.error.message[:200]}")
    if event.choices is None:
        raise AnswerGarbled("an event without choices")
    return _read_choices(event.choices)


def _read_choices(choices: list[_Choice]) -> TokenChunk | None:
    if not choices:
        return None
    if len(choices) != 1 or choices[0].index != 0:
        raise AnswerGarbled(f"an event with {len(choices)} choices, the first at {choices[0].index}")
    token_ids = tuple(choices[0].token_ids or ())
    match choices[0].finish_reason:
        case None:
            return TokenChunk(token_ids) if token_ids else None
        case "stop" | "length" as finish:
            return TokenChunk(token_ids, finish)
        case other:
            raise WorkerDown(f"the answer ended with {other!r}")


def read_refusal(body: bytes) -> str:
    """Read the message of an error body; whatever is there, shortened, when it has another shape."""
    try:
        return _refusal.decode(body).error.message[:500]
    except _UNREADABLE:
        return body[:200].decode("utf-8", "replace") or "no reason given"
