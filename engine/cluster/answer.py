"""What a worker's HTTP answers mean: pure functions from bytes to token chunks, parameters or a refusal.

The shapes are those of vLLM 0.32.0, `vllm/entrypoints/scale_out/token_in_token_out/protocol.py`; an error is
`{"error": {"message", "type", "param", "code"}}`, both as a body and as an event of a stream under HTTP 200.
"""

import math
import re
from dataclasses import dataclass
from http import HTTPStatus
from itertools import pairwise
from typing import Annotated, Any, Final, cast

import msgspec

from engine.cluster.request import FinishReason, TokenChunk, TokenLogprobs
from engine.wire import AnswerParams, JournalLine, WireInvalid

EVENT_PREFIX: Final = b"data:"
STREAM_END: Final = b"[DONE]"
# What says that the request itself is at fault, so that no other worker would take it either.
REFUSALS: Final = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
}
_OF_CONSTRAINT: Final = re.compile(
    r"grammar|json schema|regex|structural tag|structured.outputs", re.IGNORECASE
)


class WorkerDown(Exception):
    """The worker cannot serve this request, another may. Stays inside the cluster: dispatch interprets it."""


class WorkerBusy(WorkerDown):
    """The worker lives but takes nothing now: it drains, or its queue is full."""


class Refused(Exception):
    """The worker refuses the request itself. Stays inside the cluster: its client knows what of it."""


class AnswerGarbled(Exception):
    """Not the shape of any answer. Stays inside the cluster: becomes `WorkerAnswerInvalid`, with a name."""


_TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Likely(msgspec.Struct):
    token_id: _TokenId
    logprob: float
    rank: int | None = None


class _Drawn(_Likely):
    top_logprobs: list[_Likely] = []


class _Logprobs(msgspec.Struct):
    content: list[_Drawn] | None = None


class _Choice(msgspec.Struct):
    index: int
    token_ids: list[_TokenId] | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Error(msgspec.Struct):
    message: str
    code: int | str | None = None


@dataclass(frozen=True, slots=True)
class PrefillAnswer:
    """The token that a prefill drew, how that ended it, what the worker attests, and log probabilities."""

    token_id: int
    finish: FinishReason
    attested: AnswerParams
    logprobs: tuple[TokenLogprobs, ...] = ()


class _Prefill(msgspec.Struct):
    choices: list[_Choice]
    kv_transfer_params: dict[str, Any] | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: _Error | None = None


class _Refusal(msgspec.Struct):
    error: _Error


class _Lines(msgspec.Struct):
    lines: list[Any]


# Nesting a few thousand deep is not a decode error but a recursion one.
_UNREADABLE = (msgspec.DecodeError, RecursionError)
_prefill = msgspec.json.Decoder(_Prefill)
_event = msgspec.json.Decoder(_Event)
_refusal = msgspec.json.Decoder(_Refusal)
_lines = msgspec.json.Decoder(_Lines)


def read_prefill(body: bytes, top: int = 0) -> PrefillAnswer:
    """Read a whole, unstreamed answer of one token; ``top`` as in `read_line`.

    Raises:
        WorkerDown: the worker aborted the request (it drains, or its engine died) or answered with nothing.
        AnswerGarbled: not an answer, one of several tokens, or one without an attestation.
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
    if choice.finish_reason not in ("stop", "length") or not choice.token_ids:
        raise WorkerDown(f"the prefill ended with {choice.finish_reason!r} and no token")
    if len(choice.token_ids) != 1:
        raise AnswerGarbled(f"a prefill answer of {len(choice.token_ids)} tokens")
    try:
        attested = AnswerParams.from_params(answer.kv_transfer_params)
    except WireInvalid as error:
        raise AnswerGarbled(f"a prefill answer: {error}") from error
    logprobs = _read_logprobs(choice, top)
    return PrefillAnswer(choice.token_ids[0], cast("FinishReason", choice.finish_reason), attested, logprobs)


def read_lines(body: bytes, after: int) -> list[JournalLine]:
    """Read lines of a journal whose sequences rise from above ``after``; raises AnswerGarbled."""
    try:
        lines = [JournalLine.from_json(line) for line in _lines.decode(body).lines]
    except (*_UNREADABLE, WireInvalid) as error:
        raise AnswerGarbled(f"a journal that cannot be read: {error}") from error
    sequences = [after, *(line.sequence for line in lines)]
    if any(second <= first for first, second in pairwise(sequences)):
        raise AnswerGarbled("a journal whose sequences do not rise")
    return lines


def read_attested(body: bytes) -> AnswerParams:
    """Read one line of a journal for what it attests; raises AnswerGarbled."""
    try:
        line = JournalLine.from_json(msgspec.json.decode(body))
    except (*_UNREADABLE, WireInvalid) as error:
        raise AnswerGarbled(f"an attestation that cannot be read: {error}") from error
    return AnswerParams(line.attestation, line.certificate)


def read_line(line: bytes, top: int = 0) -> TokenChunk | None:
    """Read one line of a stream; None for lines that carry nothing (blank, comment, usage, end).

    ``top``: how many of the likeliest tokens are kept of those that the line tells of.

    Raises:
        Refused: an error event for a request that was never begun: vLLM looks at it behind its 200.
        WorkerDown: any other error event, or tokens ended by anything but "stop" or "length". Tokens of such
            an event are dropped: nothing of it is billable.
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
    if event.error is not None and event.error.code in REFUSALS:
        raise Refused(event.error.message[:500])
    if event.error is not None:
        raise WorkerDown(f"an error event: {event.error.message[:200]}")
    if event.choices is None:
        raise AnswerGarbled("an event without choices")
    return _read_choices(event.choices, top)


def _read_choices(choices: list[_Choice], top: int) -> TokenChunk | None:
    if not choices:
        return None
    if len(choices) != 1 or choices[0].index != 0:
        raise AnswerGarbled(f"an event with {len(choices)} choices, the first at {choices[0].index}")
    token_ids = tuple(choices[0].token_ids or ())
    match choices[0].finish_reason:
        case None:
            return TokenChunk(token_ids, None, _read_logprobs(choices[0], top)) if token_ids else None
        case "stop" | "length" as finish:
            return TokenChunk(token_ids, finish, _read_logprobs(choices[0], top))
        case other:
            raise WorkerDown(f"the answer ended with {other!r}")


def _read_logprobs(choice: _Choice, top: int) -> tuple[TokenLogprobs, ...]:
    """The drawn tokens' log probabilities; those that vLLM sends beside come in no order of likelihood."""
    if choice.logprobs is None or not choice.logprobs.content:
        return ()
    read = tuple(
        TokenLogprobs(
            drawn.token_id,
            drawn.logprob,
            tuple(
                (likely.token_id, likely.logprob) for likely in sorted(drawn.top_logprobs, key=_rank)[:top]
            ),
        )
        for drawn in choice.logprobs.content
    )
    if [logprobs.token_id for logprobs in read] != (choice.token_ids or []):
        raise AnswerGarbled("log probabilities of other tokens")
    return read


def _rank(likely: _Likely) -> float:
    return math.inf if likely.rank is None else likely.rank


def names_constraint(message: str) -> bool:
    """Whether a refusal of a constrained request blames its constraint, by vLLM 0.32.0's sentences."""
    return _OF_CONSTRAINT.search(message) is not None


def read_refusal(body: bytes) -> str:
    """Read the message of an error body; whatever is there, shortened, when it has another shape."""
    try:
        return _refusal.decode(body).error.message[:500]
    except _UNREADABLE:
        return body[:200].decode("utf-8", "replace") or "no reason given"
