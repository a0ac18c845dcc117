"""Chat completions: the answers that DeepSeek's and OpenAI's clients expect, streamed and whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from recipe.events import Drawn, Event, Finish, Text, Thinking, ToolArguments, ToolCall
from recipe.protocols.chat import ChatRequest
from recipe.protocols.logprobs import token
from recipe.request import ServiceTier
from recipe.usage import Usage, chat_usage


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

    def call_id(self, index: int) -> str:
        """The id of one of the answer's calls; clients take up to 40 characters."""
        return f"call_{self.id.rpartition('chatcmpl-')[2].replace('-', '')}_{index}"


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """How a request wants its answer; its attributes are those of `ChatRequest`.

    ``thinking``: the answer begins with reasoning, and every delta has both fields.
    """

    include_usage: bool = False
    thinking: bool = False
    tool_names: Mapping[str, str] = field(default_factory=dict)
    legacy_functions: bool = False

    @classmethod
    def of(cls, request: ChatRequest, *, thinking: bool) -> Self:
        """The style that a request wants."""
        return cls(request.include_usage, thinking, request.tool_names, request.legacy_functions)

    def reason(self, finish: Finish) -> str:
        """Why the answer ended, in the protocol's word."""
        legacy = self.legacy_functions and finish.reason == "tool_calls"
        return "function_call" if legacy else finish.reason


class ChatStream:
    """Events to chat completion chunks: `opening` once, `deltas` as events come, `closing` once.

    Chunks are plain dicts, to be sent as ``data: <json>`` frames, with ``data: [DONE]`` after the last one.
    """

    __slots__ = ("_finish", "_head", "_style")

    def __init__(self, head: AnswerHead, style: AnswerStyle) -> None:
        self._head = head
        self._style = style
        self._finish: Finish | None = None

    def opening(self, _: Usage) -> list[dict[str, Any]]:
        """The first chunk: the role and no text."""
        if self._style.thinking:
            return [self._chunk({"role": "assistant", "content": None, "reasoning_content": ""})]
        return [self._chunk({"role": "assistant", "content": ""})]

    def deltas(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        """A chunk for each piece. `Finish` is kept for `closing`: usage is not known yet."""
        chunks: list[dict[str, Any]] = []
        drawn: list[Drawn] = []
        for event in events:
            assert self._finish is None, "nothing follows Finish"
            match event:
                case Text(text):
                    chunks.append(self._chunk(self._content(text)))
                case Thinking(text):
                    chunks.append(self._chunk({"content": None, "reasoning_content": text}))
                case ToolCall() | ToolArguments():
                    chunks.append(self._chunk(self._call(event)))
                case Drawn():
                    drawn.append(event)
                case Finish():
                    self._finish = event
        if drawn:
            chunks = chunks or [self._chunk(self._content(""))]
            chunks[-1]["choices"][0]["logprobs"] = _logprobs(drawn)
        return chunks

    def closing(self, usage: Usage) -> list[dict[str, Any]]:
        """The chunk with the finish reason. Usage is in it, or in another of its own for a client that asked.

        Never in both: LangChain and pydantic-ai add up what the chunks of a stream count.
        """
        assert self._finish is not None, "a stream closes after Finish"
        counts = chat_usage(usage)
        last = self._chunk(self._content(""), finish_reason=self._style.reason(self._finish))
        if not self._style.include_usage:
            return [{**last, "usage": counts}]
        return [last, {**self._chunk({}), "choices": [], "usage": counts}]

    def _content(self, text: str) -> dict[str, Any]:
        return {"content": text, "reasoning_content": None} if self._style.thinking else {"content": text}

    def _call(self, event: ToolCall | ToolArguments) -> dict[str, Any]:
        """The head of a call once, with all that names it; then arguments and the index alone."""
        if isinstance(event, ToolArguments):
            function = {"arguments": event.text}
            call: dict[str, Any] = {"index": event.index, "function": function}
        else:
            function = {"name": self._style.tool_names.get(event.name, event.name), "arguments": ""}
            called = self._head.call_id(event.index)
            call = {"index": event.index, "id": called, "type": "function", "function": function}
        return {"function_call": function} if self._style.legacy_functions else {"tool_calls": [call]}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head.said("chat.completion.chunk"), "choices": [choice], "usage": None}


def answer(head: AnswerHead, style: AnswerStyle, events: Sequence[Event], usage: Usage) -> dict[str, Any]:
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
    if calls := _calls(head, style, events):
        message["content"] = message["content"] or None
        if style.legacy_functions:
            message["function_call"] = calls[0]["function"]
        else:
            message["tool_calls"] = calls
    drawn = [event for event in events if isinstance(event, Drawn)]
    logprobs = _logprobs(drawn) if drawn else None
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": style.reason(finish)}
    return {**head.said("chat.completion"), "choices": [choice], "usage": chat_usage(usage)}


def _logprobs(drawn: Sequence[Drawn]) -> dict[str, Any]:
    """OpenAI's object; where tokens are reasoning, with DeepSeek's list of those beside."""
    told: dict[str, Any] = {"content": [token(one) for one in drawn if not one.reasoning], "refusal": None}
    if thought := [token(one) for one in drawn if one.reasoning]:
        told["reasoning_content"] = thought
    return told


def _calls(head: AnswerHead, style: AnswerStyle, events: Sequence[Event]) -> list[dict[str, Any]]:
    arguments: dict[int, list[str]] = {}
    for event in events:
        if isinstance(event, ToolArguments):
            arguments.setdefault(event.index, []).append(event.text)
    return [
        {
            "id": head.call_id(event.index),
            "type": "function",
            "function": {
                "name": style.tool_names.get(event.name, event.name),
                "arguments": "".join(arguments.get(event.index, ())),
            },
        }
        for event in events
        if isinstance(event, ToolCall)
    ]
