"""What the strictest clients demand of a streamed answer, rule by rule, over the bytes that left.

Each rule is a sentence of `faults`; what breaks whom is in the matrix of clients (issue 5).
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.conformance import chunks_messages, chunks_responses

Chunk = dict[str, Any]
FINISHES = {"stop", "length", "tool_calls", "content_filter"}
HEADERS = {
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}


@dataclass(frozen=True)
class Event:
    """One event of a stream; ``chunk`` is None for ``[DONE]``."""

    name: str | None
    chunk: Chunk | None


def faults(path: str, asked: Mapping[str, Any], headers: Mapping[str, str], answer: bytes) -> list[str]:
    """What is wrong with a stream; empty where every client takes it.

    Args:
        path: of the request, which tells the protocol.
        asked: the request's body.
    """
    found = [*_header_faults(headers)]
    try:
        text = answer.decode()
    except UnicodeDecodeError:
        return [*found, "the stream is not whole UTF-8"]
    found += _line_faults(text)
    if found:
        return found
    events = list(_events(text))
    return list(_protocol(path)(asked, events))


def _protocol(path: str) -> Callable[[Mapping[str, Any], list[Event]], Iterator[str]]:
    if path.endswith("/chat/completions"):
        return chat_faults
    if path.endswith("/completions"):
        return completion_faults
    if path.endswith("/messages"):
        return lambda asked, events: chunks_messages.faults(_named(events))
    assert path.endswith("/responses"), path
    return lambda asked, events: chunks_responses.faults(_named(events))


def _header_faults(headers: Mapping[str, str]) -> Iterator[str]:
    if not headers.get("content-type", "").startswith("text/event-stream"):
        yield "it is no event stream"
    if "content-encoding" in headers:
        yield "an event stream is compressed"
    for name, value in HEADERS.items():
        if headers.get(name) != value:
            yield f"'{name}' is not '{value}', so a proxy may hold it back"


def _line_faults(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        field, _, value = line.partition(":")
        if field in ("id", "retry"):
            yield f"'{field}:' makes Python clients fail on comments"
        elif field == "data" and value.strip() in ("", "null"):
            yield "'data:' is empty or null"
        elif field not in ("", "data", "event"):
            yield f"an unknown field '{field}'"
    frames = [frame for frame in text.split("\n\n") if not _silent(frame)]
    if any(frame.count("data:") != 1 for frame in frames):
        yield "a frame without data, or with several"
    if not text.endswith("\n\n"):
        yield "the last frame is not ended"


def _silent(frame: str) -> bool:
    return all(line.startswith(":") or not line for line in frame.split("\n"))


def _events(text: str) -> Iterator[Event]:
    name = None
    for line in text.split("\n"):
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield Event(name, None if value == "[DONE]" else json.loads(value))
            name = None


def _named(events: list[Event]) -> Iterator[tuple[str | None, Chunk]]:
    return ((event.name, event.chunk or {"type": "[DONE]"}) for event in events)


def _broken(events: list[Event]) -> Iterator[str] | None:
    """Faults of a stream that ends with an error; None where it does not."""
    last = events[-1].chunk if events else None
    if last is None or "error" not in last:
        return None
    error = last["error"]
    said = isinstance(error, dict) and isinstance(error.get("message"), str)
    done = any(event.chunk is None for event in events)
    return iter(
        [*([] if said else ["an error without a message"]), *(["[DONE] beside an error"] if done else [])]
    )


def _ending_faults(asked: Mapping[str, Any], events: list[Event]) -> Iterator[str]:
    """Those of identity, usage and end, which chat and completions share."""
    if events[-1].chunk is not None or sum(event.chunk is None for event in events) != 1:
        yield "[DONE] is not the end, once"
    chunks = [event.chunk for event in events if event.chunk is not None]
    for key in ("id", "model", "created", "object"):
        if len({chunk.get(key) for chunk in chunks}) != 1 or chunks[0].get(key) is None:
            yield f"'{key}' is not the same in every chunk"
    if any(not isinstance(chunk.get("choices"), list) for chunk in chunks):
        yield "'choices' is no array"
        return
    counted = [chunk for chunk in chunks if chunk.get("usage") is not None]
    wanted = bool((asked.get("stream_options") or {}).get("include_usage"))
    if len(counted) != 1 or counted[0] is not chunks[-1]:
        yield "usage does not come once, in the last chunk"
    if wanted != (chunks[-1]["choices"] == []):
        yield "a chunk of usage alone comes to those who ask for it, and to no others"
    finished = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    if sum(reason is not None for reason in finished) != 1 or finished[-1] is None:
        yield "finish_reason is not given once, at the end"
    elif finished[-1] not in FINISHES:
        yield f"no client knows the finish_reason '{finished[-1]}'"


def chat_faults(asked: Mapping[str, Any], events: list[Event]) -> Iterator[str]:
    """Faults of a chat completion's chunks."""
    if (broken := _broken(events)) is not None:
        yield from broken
        return
    choices = [
        choice
        for event in events
        if event.chunk is not None and isinstance(event.chunk.get("choices"), list)
        for choice in event.chunk["choices"]
    ]
    if any(event.name is not None for event in events):
        yield "chat has no named events"
    if any("finish_reason" not in choice for choice in choices):
        yield "a choice without the key 'finish_reason'"
        return
    if any(choice.get("index") != 0 for choice in choices):
        yield "a choice without its index"
    if any(not isinstance(choice.get("delta"), dict) for choice in choices):
        yield "a choice without a delta"
        return
    yield from _ending_faults(asked, events)
    deltas = [choice["delta"] for choice in choices]
    roles = [delta["role"] for delta in deltas if "role" in delta]
    if roles != ["assistant"] or "role" not in deltas[0]:
        yield "the role does not come once, in the first delta"
    for delta in deltas:
        yield from _text_faults(delta)
    yield from _call_faults(deltas, choices[-1]["finish_reason"])


def _text_faults(delta: Chunk) -> Iterator[str]:
    for key in ("content", "reasoning_content"):
        if not isinstance(delta.get(key), str | None):
            yield f"'{key}' is no text"
    said = delta.get("reasoning_content") is not None or delta.get("tool_calls")
    if "content" in delta and delta["content"] is None and not said:
        yield "'content' is null with nothing beside it"


def _call_faults(deltas: list[Chunk], finish: str | None) -> Iterator[str]:
    arguments: dict[int, str] = {}
    ids: list[str] = []
    for piece in (piece for delta in deltas for piece in delta.get("tool_calls") or ()):
        index, function = piece.get("index"), piece.get("function") or {}
        if not isinstance(function.get("arguments", ""), str):
            yield "arguments are no text"
            return
        if index in arguments:
            if piece.keys() & {"id", "type"} or "name" in function:
                yield "id, type or name of a call come again"
            arguments[index] += function.get("arguments", "")
            continue
        if index != len(arguments):
            yield "calls are not numbered from 0, without gaps"
            return
        if not (piece.get("id") and piece.get("type") == "function" and function.get("name")):
            yield "a call begins without id, type and name"
        ids.append(piece.get("id", ""))
        arguments[index] = function.get("arguments", "")
    if len(set(ids)) != len(ids):
        yield "two calls have one id"
    if any(not _is_object(text) for text in arguments.values()):
        yield "arguments of a call are no JSON object"
    if bool(arguments) != (finish == "tool_calls") and finish != "length":
        yield "finish_reason does not say whether tools are called"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def completion_faults(asked: Mapping[str, Any], events: list[Event]) -> Iterator[str]:
    """Faults of a legacy completion's chunks."""
    if (broken := _broken(events)) is not None:
        yield from broken
        return
    for chunk in (event.chunk for event in events if event.chunk is not None):
        for choice in chunk.get("choices") or ():
            if not isinstance(choice.get("text"), str):
                yield "a choice without text"
            if "finish_reason" not in choice or choice.get("index") != 0:
                yield "a choice without index or 'finish_reason'"
                return
    yield from _ending_faults(asked, events)
