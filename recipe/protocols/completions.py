"""OpenAI's legacy completions and DeepSeek's completions in the middle: a raw text is continued."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import deepseek_recipe
from deepseek_recipe import Conversation, ConversationRequest, ConversionOptions

from recipe.errors import ParameterInvalid, ParameterUnsupported
from recipe.events import Drawn, Event, Finish, Text
from recipe.protocols import openai, parameters
from recipe.protocols.chat_answer import AnswerHead
from recipe.protocols.logprobs import Columns
from recipe.request import Request
from recipe.usage import Usage, chat_usage

# What would give another answer than it asks for, and the values that do not.
_UNSERVED: Final[dict[str, tuple[Any, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logit_bias": ({},),
    "thinking": ({"type": "disabled"},),
}
# What has an effect here. Every other parameter of a body is reported as ignored.
_SERVED: Final = frozenset(
    {
        *("model", "prompt", "suffix", "max_tokens", "stop", "stream", "stream_options", "user_id"),
        *("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "service_tier"),
        "logprobs",
        *_UNSERVED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(Request):
    """A completions body. ``include_usage``: its stream ends with a chunk of usage without choices."""

    include_usage: bool = False


def read(body: bytes) -> CompletionRequest:
    """Read a completions body.

    Raises:
        BodyMalformed: it is no JSON object.
        ParameterInvalid: a parameter is missing, of the wrong type or out of range.
        ParameterUnsupported: several prompts or answers, tokens, or more than the answer are asked for.
    """
    document = parameters.read_object(body)
    sent = frozenset(name for name, value in document.items() if value is not None)
    model = parameters.model(document)
    for name, harmless in _UNSERVED.items():
        if name in sent and not any(document[name] == value for value in harmless):
            raise ParameterUnsupported(name, f"'{name}' is not served in completions of a text")
    stream = parameters.flag(document, "stream")
    return CompletionRequest(
        model=model,
        conversation=Conversation([], thinking_mode=False),
        convert=_no_conversation,
        text=_prompt(document),
        suffix=_suffix(document),
        sampling=openai.sampling(document),
        max_tokens=parameters.integer(document, "max_tokens", 1, parameters.MAX_TOKENS_BOUND),
        names={"messages": "prompt"},
        stop=parameters.stops(document, "stop"),
        stream=stream,
        logprobs=parameters.integer(document, "logprobs", 0, parameters.TOP_LOGPROBS_MAX),
        include_usage=openai.include_usage(document, stream=stream),
        user_id=parameters.text(document, "user_id", parameters.USER_ID_CHARS_MAX) or "",
        service_tier=openai.service_tier(document),
        sent=sent,
        ignored_params=tuple(sorted(sent - _SERVED)),
    )


def _no_conversation(_: ConversionOptions) -> ConversationRequest:
    version = deepseek_recipe.ModelVersion.DeepseekV41Flash
    return ConversationRequest(Conversation([], thinking_mode=False), version)


def _prompt(document: parameters.Body) -> str:
    """The one text of ``prompt``; in a list of one, too."""
    prompt = document.get("prompt")
    if isinstance(prompt, list):
        if len(prompt) > 1 and all(isinstance(text, str) for text in prompt):
            message = "'prompt' must be one string: each other one is a request of its own"
            raise ParameterUnsupported("prompt", message)
        if prompt and not isinstance(prompt[0], str):
            raise ParameterUnsupported("prompt", "'prompt' must be a string: tokens are not served")
        prompt = prompt[0] if len(prompt) == 1 else None
    if not isinstance(prompt, str):
        raise ParameterInvalid("prompt", "'prompt' must be a string", malformed=True)
    return prompt


def _suffix(document: parameters.Body) -> str | None:
    """What is to follow the answer; nothing where it is empty."""
    suffix = document.get("suffix")
    if suffix is not None and not isinstance(suffix, str):
        raise ParameterInvalid("suffix", "'suffix' must be a string", malformed=True)
    return suffix or None


class CompletionStream:
    """Events to completion chunks: `deltas` as events come, `closing` once; nothing opens them.

    Chunks are plain dicts, to be sent as ``data: <json>`` frames, with ``data: [DONE]`` after the last one.
    """

    __slots__ = ("_columns", "_finish", "_head", "_include_usage")

    def __init__(self, head: AnswerHead, *, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage
        self._columns = Columns()
        self._finish: Finish | None = None

    def opening(self, _: Usage) -> list[dict[str, Any]]:
        """Nothing."""
        return []

    def deltas(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        """A chunk for each piece of text. `Finish` is kept for `closing`: usage is not known yet."""
        chunks = []
        drawn: list[Drawn] = []
        for event in events:
            assert self._finish is None, "nothing follows Finish"
            match event:
                case Text(text):
                    chunks.append(_object(self._head, text))
                case Drawn():
                    drawn.append(event)
                case Finish():
                    self._finish = event
        if drawn:
            chunks = chunks or [_object(self._head, "")]
            chunks[-1]["choices"][0]["logprobs"] = self._columns.of(drawn)
        return chunks

    def closing(self, usage: Usage) -> list[dict[str, Any]]:
        """The chunk with the finish reason; usage is in it, or alone in another for a client that asked."""
        assert self._finish is not None, "a stream closes after Finish"
        last = _object(self._head, "", self._finish.reason, usage)
        return [{**last, "usage": None}, {**last, "choices": []}] if self._include_usage else [last]


def answer(head: AnswerHead, events: Sequence[Event], usage: Usage) -> dict[str, Any]:
    """All events of an answer as one completion; the last event must be `Finish`."""
    finish = events[-1] if events else None
    assert isinstance(finish, Finish), "an answer ends with Finish"
    text = "".join(event.text for event in events if isinstance(event, Text))
    completion = _object(head, text, finish.reason, usage)
    if drawn := [event for event in events if isinstance(event, Drawn)]:
        completion["choices"][0]["logprobs"] = Columns().of(drawn)
    return completion


def _object(
    head: AnswerHead, text: str, finish_reason: str | None = None, usage: Usage | None = None
) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    counts = None if usage is None else chat_usage(usage)
    return {**head.said("text_completion"), "choices": [choice], "usage": counts}
