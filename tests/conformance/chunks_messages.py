"""What clients demand of the events of a Messages stream; see `chunks`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Chunk = dict[str, Any]
STOPS = {"end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"}
DELTAS = {
    "text": {"text_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}
FIRST = {"text": ("text",), "thinking": ("thinking",), "tool_use": ("id", "name", "input")}


@dataclass
class _Reading:
    """What has been read: the block that is open, its deltas, and all blocks' types."""

    started: bool = False
    ended: bool = False
    told: bool = False
    open: Chunk | None = None
    deltas: list[Chunk] = field(default_factory=list)
    types: list[str] = field(default_factory=list)


def faults(events: Iterator[tuple[str | None, Chunk]]) -> Iterator[str]:
    """Faults of a message's events, each with its name."""
    reading = _Reading()
    for name, event in events:
        kind = event.get("type")
        if name != kind:
            yield f"the event '{kind}' is not named by its 'event:' line"
        if reading.ended:
            yield f"'{kind}' after the end"
        if kind == "error":
            error = event.get("error")
            texts = [error.get(key) for key in ("type", "message")] if isinstance(error, dict) else [None]
            if not all(isinstance(text, str) for text in texts):
                yield "an error without type and message"
            reading.ended = True
            return
        if kind != "ping":
            yield from _read(reading, str(kind), event)
    if not reading.ended:
        yield "no 'message_stop'"


def _read(reading: _Reading, kind: str, event: Chunk) -> Iterator[str]:
    steps = {
        "message_start": _start,
        "content_block_start": _block,
        "content_block_delta": _delta,
        "content_block_stop": _close,
        "message_delta": _tell,
        "message_stop": _stop,
    }
    if kind not in steps:
        yield f"clients know no event '{kind}'"
        return
    if not reading.started and kind != "message_start":
        yield "'message_start' is not the first event"
        reading.started = True
    yield from steps[kind](reading, event)


def _start(reading: _Reading, event: Chunk) -> Iterator[str]:
    if reading.started:
        yield "'message_start' comes again"
    reading.started = True
    message = event.get("message") or {}
    usage = message.get("usage") or {}
    if not (isinstance(usage.get("input_tokens"), int) and isinstance(usage.get("output_tokens"), int)):
        yield "'message_start' has no usage"
    if (message.get("role"), message.get("type"), message.get("content")) != ("assistant", "message", []):
        yield "'message_start' holds no empty message of the assistant"
    if not (message.get("id") and message.get("model")) or message.get("stop_reason", "") is not None:
        yield "'message_start' lacks id, model or 'stop_reason'"


def _block(reading: _Reading, event: Chunk) -> Iterator[str]:
    if reading.open is not None or reading.told:
        yield "a block begins before the last has ended, or after 'message_delta'"
    if event.get("index") != len(reading.types):
        yield "blocks are not numbered from 0, without gaps"
    block = event.get("content_block") or {}
    kind = str(block.get("type"))
    if kind not in DELTAS:
        yield f"clients know no block '{kind}'"
    elif any(key not in block for key in FIRST[kind]) or (kind == "tool_use" and block["input"] != {}):
        yield f"a block of '{kind}' begins without what it needs"
    reading.open, reading.deltas = event, []
    reading.types.append(kind)


def _delta(reading: _Reading, event: Chunk) -> Iterator[str]:
    delta = event.get("delta") or {}
    if reading.open is None or event.get("index") != reading.open.get("index"):
        yield "a delta outside its block"
    elif delta.get("type") not in DELTAS.get(reading.types[-1], set()):
        yield f"a '{delta.get('type')}' in a block of '{reading.types[-1]}'"
    reading.deltas.append(delta)


def _close(reading: _Reading, event: Chunk) -> Iterator[str]:
    if reading.open is None or event.get("index") != reading.open.get("index"):
        yield "a block ends that is not open"
        return
    reading.open = None
    if reading.types[-1] == "tool_use":
        text = "".join(str(delta.get("partial_json")) for delta in reading.deltas)
        try:
            whole = isinstance(json.loads(text or "{}"), dict)
        except ValueError:
            whole = False
        if not whole:
            yield "the input of a tool is no JSON object"
    if reading.types[-1] == "thinking":
        signed = [place for place, delta in enumerate(reading.deltas) if delta["type"] == "signature_delta"]
        if signed != [len(reading.deltas) - 1] or not reading.deltas[-1].get("signature"):
            yield "thinking is not signed once, at its end"


def _tell(reading: _Reading, event: Chunk) -> Iterator[str]:
    if reading.told or reading.open is not None:
        yield "'message_delta' does not come once, after all blocks"
    reading.told = True
    reason = (event.get("delta") or {}).get("stop_reason")
    if reason not in STOPS:
        yield f"no client knows the stop_reason '{reason}'"
    if ("tool_use" in reading.types) != (reason == "tool_use") and reason != "max_tokens":
        yield "stop_reason does not say whether tools are called"
    if not isinstance((event.get("usage") or {}).get("output_tokens"), int):
        yield "'message_delta' has no usage"


def _stop(reading: _Reading, event: Chunk) -> Iterator[str]:
    if not reading.told:
        yield "'message_stop' without a 'message_delta'"
    reading.ended = True
