"""What clients demand of the events of a Responses stream; see `chunks`."""

import json
from collections.abc import Iterator
from typing import Any

Chunk = dict[str, Any]
ENDS = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}


def faults(events: Iterator[tuple[str | None, Chunk]]) -> Iterator[str]:
    """Faults of a response's events, each with its name."""
    chunks = []
    for place, (name, event) in enumerate(events):
        if name != event.get("type"):
            yield f"the event '{event.get('type')}' is not named by its 'event:' line"
        if event.get("sequence_number") != place:
            yield "events are not numbered from 0, without gaps"
        chunks.append(event)
    kinds = [str(chunk.get("type")) for chunk in chunks]
    if kinds and kinds[-1] == "error":
        if not isinstance(chunks[-1].get("message"), str):
            yield "an error without a message"
        return
    if kinds[:2] != ["response.created", "response.in_progress"]:
        yield "it does not begin with 'response.created' and 'response.in_progress'"
    if sum(kind in ENDS for kind in kinds) != 1 or kinds[-1] not in ENDS:
        yield "it does not end once, with 'response.completed', 'failed' or 'incomplete'"
        return
    yield from _end_faults(chunks)
    yield from _item_faults(chunks)


def _end_faults(chunks: list[Chunk]) -> Iterator[str]:
    final = chunks[-1].get("response") or {}
    if final.get("status") != ENDS[chunks[-1]["type"]]:
        yield "the status of the response is not that of its last event"
    usage = final.get("usage") or {}
    if chunks[-1]["type"] != "response.failed" and not all(
        isinstance(usage.get(key), int) for key in ("input_tokens", "output_tokens", "total_tokens")
    ):
        yield "the last event has no usage"
    ids = {(chunk.get("response") or {}).get("id") for chunk in (chunks[0], chunks[1], chunks[-1])}
    if len(ids) != 1 or None in ids:
        yield "the response changes its id"
    done = [chunk.get("item") for chunk in chunks if chunk["type"] == "response.output_item.done"]
    if final.get("output") != done:
        yield "the response's output is not what its items were"


def _item_faults(chunks: list[Chunk]) -> Iterator[str]:
    """Each item is added, filled and done, one after the other; its deltas are its text."""
    added = [chunk for chunk in chunks if chunk["type"] == "response.output_item.added"]
    if [chunk.get("output_index") for chunk in added] != list(range(len(added))):
        yield "items are not numbered from 0, without gaps"
    for place, start in enumerate(added):
        own = [chunk for chunk in chunks if chunk.get("output_index") == place]
        item = start.get("item") or {}
        kinds = [chunk["type"] for chunk in own]
        ends = (kinds[0], kinds[-1], kinds.count(kinds[-1]))
        if ends != ("response.output_item.added", "response.output_item.done", 1):
            yield "an item has events before it is added or after it is done"
            continue
        if any(chunk.get("item_id", item.get("id")) != item.get("id") for chunk in own):
            yield "an event names another item than its own"
        if (own[-1].get("item") or {}).get("id") != item.get("id"):
            yield "an item changes its id"
        yield from _text_faults(own)


def _text_faults(own: list[Chunk]) -> Iterator[str]:
    item = own[-1].get("item") or {}
    pieces: dict[str, str] = {}
    for chunk in own:
        if chunk["type"].endswith(".delta"):
            stem = chunk["type"].removesuffix(".delta")
            pieces[stem] = pieces.get(stem, "") + str(chunk.get("delta"))
    for chunk in own:
        stem, _, end = chunk["type"].rpartition(".")
        whole = chunk.get("text", chunk.get("arguments"))
        if end == "done" and stem in pieces and whole != pieces[stem]:
            yield f"'{chunk['type']}' is not what its deltas were"
    if item.get("type") == "function_call":
        try:
            called = isinstance(json.loads(item.get("arguments") or ""), dict)
        except ValueError:
            called = False
        if not (called and item.get("call_id") and item.get("name")):
            yield "a call without call_id, name, and arguments that are a JSON object"
    if item.get("type") == "message":
        text = "".join(str(part.get("text")) for part in item.get("content") or ())
        if text != pieces.get("response.output_text", ""):
            yield "a message's text is not what its deltas were"
