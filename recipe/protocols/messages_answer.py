"""Answers as Anthropic's clients expect them: a stream of events about content blocks, or one message."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import msgspec

from recipe.events import EndReason, Event, Finish, Text, Thinking, ToolArguments, ToolCall
from recipe.usage import Usage, messages_usage

_STOP_REASONS: Final[dict[EndReason, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}
Chunk = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Whose answer it is: the id of its request, and the model's public name."""

    request_id: str
    model: str

    @property
    def id(self) -> str:
        """Of the message. Its thinking is signed with it: clients send that back unread, and so do we."""
        return f"msg_{self.request_id}"

    def call_id(self, index: int) -> str:
        """Of one of the answer's calls."""
        return f"toolu_{self.request_id}_{index}"

    def message(self, content: list[Chunk], usage: Usage, finish: Finish | None = None) -> Chunk:
        """The message, finished or just begun."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            **_ending(finish),
            "usage": messages_usage(usage),
        }


def _ending(finish: Finish | None) -> Chunk:
    if finish is None:
        return {"stop_reason": None, "stop_sequence": None}
    reason = "stop_sequence" if finish.stop_sequence is not None else _STOP_REASONS[finish.reason]
    return {"stop_reason": reason, "stop_sequence": finish.stop_sequence}


class MessagesStream:
    """Events to stream events: `opening` once, `deltas` as events come, `closing` once.

    One content block is open at a time; the next one closes it.
    """

    __slots__ = ("_finish", "_head", "_open", "_place")

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._open: str | None = None
        self._place = -1
        self._finish: Finish | None = None

    def opening(self, prompt: Usage) -> list[Chunk]:
        """The message without content, and how its prompt was served."""
        return [{"type": "message_start", "message": self._head.message([], prompt)}]

    def deltas(self, events: Sequence[Event]) -> list[Chunk]:
        """Content blocks, piece by piece. `Finish` is kept for `closing`: usage is not known yet."""
        chunks: list[Chunk] = []
        for event in events:
            assert self._finish is None, "nothing follows Finish"
            match event:
                case Text(text):
                    if self._open != "text":
                        chunks += self._begin({"type": "text", "text": ""})
                    chunks.append(self._delta({"type": "text_delta", "text": text}))
                case Thinking(text):
                    if self._open != "thinking":
                        chunks += self._begin({"type": "thinking", "thinking": "", "signature": ""})
                    chunks.append(self._delta({"type": "thinking_delta", "thinking": text}))
                case ToolCall(index, name):
                    call_id = self._head.call_id(index)
                    chunks += self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}})
                case ToolArguments(_, text):
                    assert self._open == "tool_use", "arguments follow their call"
                    chunks.append(self._delta({"type": "input_json_delta", "partial_json": text}))
                case Finish():
                    self._finish = event
        return chunks

    def closing(self, usage: Usage) -> list[Chunk]:
        """The end of the last block, why the answer ended, what it cost, and that nothing follows."""
        assert self._finish is not None, "a stream closes after Finish"
        ending = {"type": "message_delta", "delta": _ending(self._finish), "usage": messages_usage(usage)}
        return [*self._end(), ending, {"type": "message_stop"}]

    def _begin(self, block: Chunk) -> list[Chunk]:
        ended = self._end()
        self._open = block["type"]
        self._place += 1
        return [*ended, {"type": "content_block_start", "index": self._place, "content_block": block}]

    def _delta(self, delta: Chunk) -> Chunk:
        return {"type": "content_block_delta", "index": self._place, "delta": delta}

    def _end(self) -> list[Chunk]:
        if self._open is None:
            return []
        signed = self._open == "thinking"
        self._open = None
        signature = [self._delta({"type": "signature_delta", "signature": self._head.id})] if signed else []
        return [*signature, {"type": "content_block_stop", "index": self._place}]


def answer(head: AnswerHead, events: Sequence[Event], usage: Usage) -> Chunk:
    """All events of an answer as one message; the last event must be `Finish`."""
    finish = events[-1] if events else None
    assert isinstance(finish, Finish), "an answer ends with Finish"
    content = [_block(head, list(run)) for _, run in groupby(events[:-1], _of)]
    return head.message(content, usage, finish)


def _of(event: Event) -> object:
    """What neighbouring events of one block have in common."""
    return event.index if isinstance(event, ToolCall | ToolArguments) else type(event)


def _block(head: AnswerHead, run: Sequence[Event]) -> Chunk:
    first = run[0]
    text = "".join(event.text for event in run if isinstance(event, Text | Thinking | ToolArguments))
    match first:
        case Thinking():
            return {"type": "thinking", "thinking": text, "signature": head.id}
        case ToolCall(index, name):
            return {"type": "tool_use", "id": head.call_id(index), "name": name, "input": _input(text)}
    return {"type": "text", "text": text}


def _input(arguments: str) -> Chunk:
    """The arguments of a call; none of one that was cut off, as its stop reason says."""
    try:
        read = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return {}
    return read if isinstance(read, dict) else {}
