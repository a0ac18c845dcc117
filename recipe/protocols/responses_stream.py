"""Answers as OpenAI's Responses events; a whole answer is what the last of them says."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from deepseek_recipe import ConversionOptions

from recipe.events import Drawn, Event, Finish, Text, Thinking, ToolArguments, ToolCall
from recipe.protocols.conversion import MODEL
from recipe.protocols.logprobs import token
from recipe.protocols.responses_bridge import convert, echo
from recipe.usage import Usage, responses_usage

Chunk = dict[str, Any]

_OPTIONS: Final = ConversionOptions()


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What the events of one answer are made with.

    Attributes:
        id: the request's; the response, its items and its calls are named after it.
        model: public name.
        created_at: Unix seconds.
        echo: what the response says of its request.
        namespaces: a tool's name as the model knows it, to its namespace and its name there.
        custom_tools: tools whose arguments are one text, ``input``.
        encrypted: items of reasoning carry ``encrypted_content``.
    """

    id: str
    model: str
    created_at: int
    echo: Mapping[str, Any] = field(repr=False)
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    custom_tools: frozenset[str] = frozenset()
    encrypted: bool = False

    @classmethod
    def unknown(cls) -> "ResponseHead":
        """Of an answer that ended before anything was known of it."""
        wire = {"model": MODEL, "input": ""}
        return cls(id="unknown", model="", created_at=0, echo=echo(wire, convert(wire, _OPTIONS)))


@dataclass(slots=True)
class _Item:
    """An item of the output in the making.

    Attributes:
        head: what it says of itself from the beginning, without ``status``.
        kind: of its events: ``output_text``, ``reasoning_text``, ``function_call_arguments`` or
            ``custom_tool_call_input``.
        holds: the field that its pieces become: ``text``, ``arguments`` or ``input``.
        logprobs: of the tokens of its text, where they are asked for.
    """

    place: int
    head: Chunk
    kind: str
    holds: str
    pieces: list[str] = field(default_factory=list)
    logprobs: list[Chunk] = field(default_factory=list)

    @property
    def in_parts(self) -> bool:
        """Whether its text is the one part of its content."""
        return self.holds == "text"

    @property
    def whole(self) -> str:
        """Its text, or a call's arguments; a custom tool's input, once its JSON is complete."""
        whole = "".join(self.pieces)
        if self.holds != "input":
            return whole
        try:
            made = msgspec.json.decode(whole)["input"]
        except (msgspec.DecodeError, KeyError, TypeError):
            return ""
        return made if isinstance(made, str) else ""

    def shown(self, status: str, value: str) -> Chunk:
        """The item itself; with an empty value as it begins."""
        item = {**self.head, "status": status}
        if self.in_parts:
            item["content"] = [self.part(value)] if value else []
        else:
            item[self.holds] = value
        return item

    def part(self, text: str) -> Chunk:
        """The part of its content."""
        part: Chunk = {"type": self.kind, "text": text}
        if self.kind != "output_text":
            return part
        return {**part, "annotations": [], "logprobs": list(self.logprobs) if text else []}

    def named(self) -> Chunk:
        """How its own events refer to it."""
        named = {"item_id": self.head["id"], "output_index": self.place}
        if self.in_parts:
            named["content_index"] = 0
        return named

    def said(self, logprobs: Sequence[Chunk], **value: str) -> Chunk:
        """What an event of its text, arguments or input tells."""
        said = {**value, **self.named()}
        return {**said, "logprobs": list(logprobs)} if self.kind == "output_text" else said


class ResponsesStream:
    """Events to Responses events: `opening` once, `deltas` as events come, `closing` or `failing` once.

    They are plain dicts, numbered from 0 without a gap, to be sent as frames named after their ``type``.
    """

    __slots__ = ("_drawn", "_finish", "_head", "_item", "_number", "_opened", "_output")

    def __init__(self, head: ResponseHead) -> None:
        self._head = head
        self._item: _Item | None = None
        self._output: list[Chunk] = []
        self._finish: Finish | None = None
        self._drawn: list[Chunk] = []  # tokens whose text has not been told yet
        self._opened = False
        self._number = 2  # `opening` takes the first two, whenever it is written

    def opening(self, _: Usage | None = None) -> list[Chunk]:
        """What comes before all text: the response, in progress."""
        self._opened = True
        response = self._response("in_progress", output=[])
        kinds = ("response.created", "response.in_progress")
        return [
            {"type": kind, "response": response, "sequence_number": number}
            for number, kind in enumerate(kinds)
        ]

    def deltas(self, events: Sequence[Event]) -> list[Chunk]:
        """Events of each piece and of each item that begins or ends. `Finish` is kept for `closing`.

        Of drawn tokens all are told but those of the reasoning and of calls: with the text that they became,
        or else with the whole message.
        """
        chunks: list[Chunk] = []
        drawn = [token(event) for event in events if isinstance(event, Drawn) and not event.reasoning]
        for event in events:
            assert self._finish is None, "nothing follows Finish"
            match event:
                case Text(text):
                    self._drawn += drawn
                    drawn = []
                    self._say("output_text", text, chunks)
                case Thinking(text):
                    self._say("reasoning_text", text, chunks)
                case ToolCall():
                    self._begin(self._call(event), chunks)
                case ToolArguments(_, text):
                    assert self._item is not None
                    self._add(self._item, text, chunks)
                case Finish():
                    self._finish = event
        if self._item is None or self._item.in_parts:
            self._drawn += drawn
        return chunks

    def closing(self, usage: Usage) -> list[Chunk]:
        """The end of the last item, and the whole response with its usage."""
        assert self._finish is not None, "a stream closes after Finish"
        chunks: list[Chunk] = []
        cut = self._finish.reason == "length"
        status = "incomplete" if cut else "completed"
        self._end(status, chunks)
        details = {"reason": "max_output_tokens"} if cut else None
        response = self._response(status, usage=responses_usage(usage), incomplete_details=details)
        return [*chunks, self._numbered(f"response.{status}", {"response": response})]

    def failing(self, error: Mapping[str, Any]) -> list[Chunk]:
        """A failure: the error, at which clients raise, and the response without usage as the last word.

        Args:
            error: its ``message``, ``type``, ``param`` and ``code``.
        """
        opening = [] if self._opened else self.opening()
        told = {name: error.get(name) for name in ("message", "param", "code")}
        failed = self._response("failed", error={"code": "server_error", "message": error["message"]})
        return [
            *opening,
            self._numbered("error", {**told, "error": dict(error)}),
            self._numbered("response.failed", {"response": failed}),
        ]

    def _say(self, kind: str, text: str, chunks: list[Chunk]) -> None:
        if self._item is None or self._item.kind != kind:
            self._begin(self._written(kind), chunks)
        assert self._item is not None
        self._add(self._item, text, chunks)

    def _begin(self, item: _Item, chunks: list[Chunk]) -> None:
        called = item.holds != "text"
        self._end("completed", chunks, called=called)
        self._item = item
        if called:
            self._drawn = []
        added = {"item": item.shown("in_progress", ""), "output_index": item.place}
        chunks.append(self._numbered("response.output_item.added", added))
        if item.in_parts:
            part = {**item.named(), "part": item.part("")}
            chunks.append(self._numbered("response.content_part.added", part))

    def _add(self, item: _Item, piece: str, chunks: list[Chunk]) -> None:
        item.pieces.append(piece)
        drawn: list[Chunk] = []
        if item.kind == "output_text":
            drawn, self._drawn = self._drawn, []
            item.logprobs += drawn
        if item.holds != "input":
            chunks.append(self._numbered(f"response.{item.kind}.delta", item.said(drawn, delta=piece)))

    def _end(self, status: str, chunks: list[Chunk], *, called: bool = False) -> None:
        """End the item in the making; what is said before a call is commentary."""
        item, self._item = self._item, None
        if item is None:
            return
        whole = item.whole
        if called and "phase" in item.head:
            item.head["phase"] = "commentary"
        if item.holds == "input" and whole:
            chunks.append(self._numbered(f"response.{item.kind}.delta", item.said((), delta=whole)))
        if item.kind == "output_text":
            item.logprobs += self._drawn
            self._drawn = []
        done = item.said(item.logprobs, **{item.holds: whole})
        chunks.append(self._numbered(f"response.{item.kind}.done", done))
        if item.in_parts:
            part = {**item.named(), "part": item.part(whole)}
            chunks.append(self._numbered("response.content_part.done", part))
        shown = item.shown(status, whole)
        self._output.append(shown)
        ended = {"item": shown, "output_index": item.place}
        chunks.append(self._numbered("response.output_item.done", ended))

    def _written(self, kind: str) -> _Item:
        """A new item of text or of reasoning, behind the one in the making."""
        place = self._next_place()
        if kind == "output_text":
            said = {"role": "assistant", "phase": "final_answer"}
            return _Item(place, {"type": "message", "id": self._id("msg", place), **said}, kind, "text")
        head: Chunk = {"type": "reasoning", "id": self._id("rs", place), "summary": []}
        if self._head.encrypted:
            # The reasoning stands in plain text beside it; clients that keep items by this get one to keep.
            head["encrypted_content"] = f"{self._head.id}-{place}"
        return _Item(place, head, kind, "text")

    def _call(self, call: ToolCall) -> _Item:
        place = self._next_place()
        named = {"call_id": f"call_{self._head.id}_{call.index}", "name": call.name}
        if call.name in self._head.custom_tools:
            head = {"type": "custom_tool_call", "id": self._id("ctc", place), **named}
            return _Item(place, head, "custom_tool_call_input", "input")
        if found := self._head.namespaces.get(call.name):
            named["namespace"], named["name"] = found
        head = {"type": "function_call", "id": self._id("fc", place), **named}
        return _Item(place, head, "function_call_arguments", "arguments")

    def _next_place(self) -> int:
        return len(self._output) + (self._item is not None)

    def _id(self, prefix: str, place: int) -> str:
        return f"{prefix}_{self._head.id}_{place}"

    def _numbered(self, kind: str, fields: Chunk) -> Chunk:
        chunk = {"type": kind, **fields, "sequence_number": self._number}
        self._number += 1
        return chunk

    def _response(self, status: str, **said: Any) -> Chunk:
        head = self._head
        return {
            "id": f"resp_{head.id}",
            "object": "response",
            "created_at": head.created_at,
            "status": status,
            "model": head.model,
            "output": self._output,
            "error": None,
            "incomplete_details": None,
            "usage": None,
            **head.echo,
            **said,
        }


def answer(head: ResponseHead, events: Sequence[Event], usage: Usage) -> Chunk:
    """All events of an answer as one response; the last event must be `Finish`."""
    stream = ResponsesStream(head)
    for batch in _batches(events):
        stream.deltas(batch)
    response: Chunk = stream.closing(usage)[-1]["response"]
    return response


def _batches(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Events as they came: drawn tokens behind the text that came with them."""
    batch: list[Event] = []
    for event in events:
        if batch and isinstance(batch[-1], Drawn) and not isinstance(event, Drawn):
            yield batch
            batch = []
        batch.append(event)
    yield batch
