"""DeepSeek's and OpenAI's chat completions: the body they send, the answers they expect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from deepseek_recipe import ConversionOptions

from recipe.errors import ParameterInvalid, ParameterUnsupported
from recipe.events import Event, Finish, Text, Thinking
from recipe.prompt import Sampling
from recipe.protocols import parameters
from recipe.protocols.bridge import CONVERTED, bridged, convert
from recipe.request import Request, ServiceTier
from recipe.usage import Usage, chat_usage

MAX_TOKENS_BOUND: Final = 2**31 - 1
STOPS_MAX: Final = 16
STOP_CHARS_MAX: Final = 256
USER_ID_CHARS_MAX: Final = 512
MODEL_CHARS_MAX: Final = 256

# OpenAI's "priority" and "scale" are not among them: nobody here is served faster for more.
_TIERS: Final = ("auto", "default", "flex")

# What has an effect here. Every other parameter of a body is reported as ignored.
_SERVED: Final = frozenset(
    {
        *CONVERTED,
        *(
            "model",
            "messages",
            "functions",
            "function_call",
            "n",
            "stream",
            "stream_options",
            "stop",
            "user_id",
            "service_tier",
        ),
        *("max_tokens", "max_completion_tokens", "modalities", "audio"),
        *("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(Request):
    """A chat body. ``include_usage``: its stream ends with a chunk of usage without choices."""

    include_usage: bool = False


_OPTIONS: Final = ConversionOptions().with_default_thinking_mode(False)


def read(body: bytes) -> ChatRequest:
    """Read a chat completion's body.

    Raises:
        BodyMalformed: it is no JSON object.
        ParameterInvalid: a parameter is missing, of the wrong type or out of range.
        ParameterUnsupported: several choices, or an answer in sound, are asked for.
    """
    document = parameters.read_object(body)
    sent = frozenset(name for name, value in document.items() if value is not None)
    model = parameters.text(document, "model", MODEL_CHARS_MAX)
    if not model:
        raise ParameterInvalid("model", "'model' is missing", malformed=True)
    _refuse_other_answers(document)
    wire = bridged(document)
    stream = parameters.flag(document, "stream")
    return ChatRequest(
        model=model,
        conversation=convert(wire, _OPTIONS).conversation,
        convert=partial(convert, wire),
        sampling=_sampling(document),
        max_tokens=_max_tokens(document),
        max_tokens_param="max_completion_tokens" if "max_completion_tokens" in sent else "max_tokens",
        stop=_stop(document),
        stream=stream,
        include_usage=_include_usage(document, stream=stream),
        user_id=parameters.text(document, "user_id", USER_ID_CHARS_MAX) or "",
        ignored_params=tuple(sorted(sent - _SERVED)),
        sent=sent,
        service_tier=_service_tier(document),
    )


def _refuse_other_answers(document: Mapping[str, Any]) -> None:
    if parameters.integer(document, "n", 1, 128) not in (None, 1):
        raise ParameterUnsupported("n", "'n' must be 1: one choice is served per request")
    if document.get("modalities") not in (None, [], ["text"]):
        raise ParameterUnsupported("modalities", "'modalities' must be [\"text\"]")
    if document.get("audio") is not None:
        raise ParameterUnsupported("audio", "'audio' is not served")


def _sampling(document: Mapping[str, Any]) -> Sampling:
    temperature = parameters.number(document, "temperature", 0, 2)
    top_p = parameters.number(document, "top_p", 0, 1)
    if top_p == 0:
        raise ParameterInvalid("top_p", "'top_p' must be above 0")
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        seed=parameters.integer(document, "seed", 0, 2**63 - 1),
        presence_penalty=parameters.number(document, "presence_penalty", -2, 2) or 0.0,
        frequency_penalty=parameters.number(document, "frequency_penalty", -2, 2) or 0.0,
    )


def _max_tokens(document: Mapping[str, Any]) -> int | None:
    newer = parameters.integer(document, "max_completion_tokens", 1, MAX_TOKENS_BOUND)
    older = parameters.integer(document, "max_tokens", 1, MAX_TOKENS_BOUND)
    return newer if newer is not None else older


def _stop(document: Mapping[str, Any]) -> tuple[str, ...]:
    stops = document.get("stop")
    if stops is None:
        return ()
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, list):
        raise ParameterInvalid("stop", "'stop' must be a string or a list of strings", malformed=True)
    if len(stops) > STOPS_MAX:
        raise ParameterInvalid("stop", f"'stop' must hold at most {STOPS_MAX} strings")
    for place, stop in enumerate(stops):
        if not isinstance(stop, str):
            raise ParameterInvalid(f"stop[{place}]", "A stop must be a string", malformed=True)
        if len(stop) > STOP_CHARS_MAX:
            raise ParameterInvalid(f"stop[{place}]", f"A stop must have at most {STOP_CHARS_MAX} characters")
    return tuple(filter(None, stops))


def _service_tier(document: Mapping[str, Any]) -> ServiceTier | None:
    tier = parameters.text(document, "service_tier", MODEL_CHARS_MAX)
    if tier is None:
        return None
    if tier not in _TIERS:
        raise ParameterInvalid("service_tier", f"'service_tier' must be one of {', '.join(_TIERS)}")
    return "default" if tier == "auto" else cast("ServiceTier", tier)


def _include_usage(document: Mapping[str, Any], *, stream: bool) -> bool:
    options = document.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise ParameterInvalid("stream_options", "'stream_options' must be an object", malformed=True)
    if not stream:
        raise ParameterInvalid("stream_options", "'stream_options' needs 'stream' to be true")
    include = options.get("include_usage")
    if include is not None and not isinstance(include, bool):
        message = "'stream_options.include_usage' must be true or false"
        raise ParameterInvalid("stream_options.include_usage", message, malformed=True)
    return bool(include)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every chunk of an answer repeats: ``id``, public model name, ``created`` in Unix seconds.

    And the tier that served it, to a client that named one.
    """

    id: str
    model: str
    created: int
    service_tier: ServiceTier | None = None

    def said(self, kind: str) -> dict[str, Any]:
        """The fields of an object of this kind."""
        tier = {} if self.service_tier is None else {"service_tier": self.service_tier}
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, **tier}


class ChatStream:
    """Events to chat completion chunks: `opening` once, `deltas` as events come, `closing` once.

    Chunks are plain dicts, to be sent as ``data: <json>`` frames, with ``data: [DONE]`` after the last one.
    """

    __slots__ = ("_finish", "_head", "_include_usage", "_thinking")

    def __init__(self, head: AnswerHead, *, include_usage: bool, thinking: bool = False) -> None:
        self._head = head
        self._include_usage = include_usage
        self._thinking = thinking
        self._finish: Finish | None = None

    def opening(self, _: Usage) -> list[dict[str, Any]]:
        """The first chunk: the role and no text."""
        if self._thinking:
            return [self._chunk({"role": "assistant", "content": None, "reasoning_content": ""})]
        return [self._chunk({"role": "assistant", "content": ""})]

    def deltas(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        """A chunk for each piece of text. `Finish` is kept for `closing`: usage is not known yet."""
        chunks = []
        for event in events:
            assert self._finish is None, "nothing follows Finish"
            match event:
                case Text(text):
                    delta = (
                        {"content": text, "reasoning_content": None} if self._thinking else {"content": text}
                    )
                    chunks.append(self._chunk(delta))
                case Thinking(text):
                    chunks.append(self._chunk({"content": None, "reasoning_content": text}))
                case Finish():
                    self._finish = event
        return chunks

    def closing(self, usage: Usage) -> list[dict[str, Any]]:
        """The chunk with the finish reason. Usage is in it, or in another of its own for a client that asked.

        Never in both: LangChain and pydantic-ai add up what the chunks of a stream count.
        """
        assert self._finish is not None, "a stream closes after Finish"
        counts = chat_usage(usage)
        delta = {"content": "", "reasoning_content": None} if self._thinking else {"content": ""}
        last = self._chunk(delta, finish_reason=self._finish.reason)
        if not self._include_usage:
            return [{**last, "usage": counts}]
        return [last, {**self._chunk({}), "choices": [], "usage": counts}]

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head.said("chat.completion.chunk"), "choices": [choice], "usage": None}


def answer(head: AnswerHead, events: Sequence[Event], usage: Usage) -> dict[str, Any]:
    """All events of an answer as one chat completion; the last event must be `Finish`."""
    finish = events[-1] if events else None
    assert isinstance(finish, Finish), "an answer ends with Finish"
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(event.text for event in events if isinstance(event, Text)),
    }
    thoughts = "".join(event.text for event in events if isinstance(event, Thinking))
    if thoughts:
        message["reasoning_content"] = thoughts
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish.reason}
    return {**head.said("chat.completion"), "choices": [choice], "usage": chat_usage(usage)}
