"""Each rule for streamed answers, broken once in a stream that otherwise holds all of them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.chunks import HEADERS, faults

SSE = {"content-type": "text/event-stream; charset=utf-8", **HEADERS}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
USAGE_ASKED = {"stream_options": {"include_usage": True}}
Chunks = list[dict[str, Any]]
Plant = Callable[[Chunks], object]


def chat(*choices: dict[str, Any]) -> Chunks:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "usage": None}
    chunks = [{**head, "choices": [{"index": 0, "finish_reason": None, **choice}]} for choice in choices]
    return [*chunks, {**head, "choices": [], "usage": {"total_tokens": 3}}]


def called() -> Chunks:
    def piece(**fields: Any) -> dict[str, Any]:
        return {"delta": {"tool_calls": [fields]}}

    def head(index: int, **arguments: Any) -> dict[str, Any]:
        function = {"name": "f", "arguments": "", **arguments}
        return piece(index=index, id=f"call_{index}", type="function", function=function)

    return chat(
        {"delta": {"role": "assistant", "content": ""}},
        {"delta": {"content": "Let me see"}},
        head(0),
        piece(index=0, function={"arguments": '{"a":'}),
        piece(index=0, function={"arguments": " 1}"}),
        head(1, arguments="{}"),
        {"delta": {}, "finish_reason": "tool_calls"},
    )


def completion() -> Chunks:
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "usage": None}
    texts = (("Hel", None), ("lo", "stop"))
    chunks = [
        {**head, "choices": [{"index": 0, "text": text, "finish_reason": reason}]} for text, reason in texts
    ]
    return [*chunks, {**head, "choices": [], "usage": {"total_tokens": 3}}]


def messages() -> Chunks:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m"}
    usage = {"input_tokens": 3, "output_tokens": 0}
    blocks: tuple[tuple[dict[str, Any], tuple[dict[str, Any], ...]], ...] = (
        (
            {"type": "thinking", "thinking": ""},
            ({"type": "thinking_delta", "thinking": "Hm"}, {"type": "signature_delta", "signature": "s"}),
        ),
        ({"type": "text", "text": ""}, ({"type": "text_delta", "text": "Hello"},)),
        (
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
            ({"type": "input_json_delta", "partial_json": '{"a": 1}'},),
        ),
    )
    events: Chunks = [{"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}}]
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    told = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}}
    return [*events, told, {"type": "message_stop"}]


def responses() -> Chunks:
    head = {"id": "resp_1", "object": "response"}
    text = {"type": "output_text", "text": "Hello", "annotations": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant"}
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f"}
    done = [{**message, "content": [text]}, {**call, "arguments": "{}"}]
    of_text, of_call = {"output_index": 0, "item_id": "msg_1"}, {"output_index": 1, "item_id": "fc_1"}
    usage = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8}
    events: tuple[tuple[str, dict[str, Any]], ...] = (
        ("created", {"response": {**head, "status": "in_progress"}}),
        ("in_progress", {"response": {**head, "status": "in_progress"}}),
        ("output_item.added", {"output_index": 0, "item": {**message, "content": []}}),
        ("content_part.added", {**of_text, "content_index": 0, "part": {**text, "text": ""}}),
        ("output_text.delta", {**of_text, "content_index": 0, "delta": "Hel"}),
        ("output_text.delta", {**of_text, "content_index": 0, "delta": "lo"}),
        ("output_text.done", {**of_text, "content_index": 0, "text": "Hello"}),
        ("content_part.done", {**of_text, "content_index": 0, "part": text}),
        ("output_item.done", {"output_index": 0, "item": done[0]}),
        ("output_item.added", {"output_index": 1, "item": {**call, "arguments": ""}}),
        ("function_call_arguments.delta", {**of_call, "delta": "{}"}),
        ("function_call_arguments.done", {**of_call, "arguments": "{}"}),
        ("output_item.done", {"output_index": 1, "item": done[1]}),
        ("completed", {"response": {**head, "status": "completed", "output": done, "usage": usage}}),
    )
    return [
        {"type": f"response.{kind}", "sequence_number": place, **json.loads(json.dumps(event))}
        for place, (kind, event) in enumerate(events)
    ]


SOUND: dict[str, Callable[[], Chunks]] = {
    CHAT: called,
    COMPLETIONS: completion,
    MESSAGES: messages,
    RESPONSES: responses,
}


def framed(path: str, chunks: Chunks) -> bytes:
    named = path in (MESSAGES, RESPONSES)
    frames = [
        (f"event: {chunk['type']}\n" if named else "") + f"data: {json.dumps(chunk)}\n\n" for chunk in chunks
    ]
    return (": ping\n" + "".join(frames) + ("" if named else "data: [DONE]\n\n")).encode()


@pytest.mark.parametrize("path", SOUND)
def test_a_stream_that_holds_every_rule_has_no_fault(path: str) -> None:
    assert faults(path, USAGE_ASKED, SSE, framed(path, SOUND[path]())) == []


LINES: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("not whole UTF-8", lambda raw: raw.replace(b"Let me see", b"\xf0\x9f")),
    ("'id:' makes", lambda raw: b"id: 1\n" + raw),
    ("'retry:' makes", lambda raw: b"retry: 5\n" + raw),
    ("empty or null", lambda raw: b"data: null\n\n" + raw),
    ("empty or null", lambda raw: b"data:\n\n" + raw),
    ("unknown field", lambda raw: b"ping\n\n" + raw),
    ("without data, or with several", lambda raw: raw.replace(b"\n\ndata", b"\ndata", 1)),
    ("without data, or with several", lambda raw: b"event: x\n\n" + raw),
    ("is not ended", lambda raw: raw[:-1]),
    ("[DONE] is not the end", lambda raw: raw.replace(b"data: [DONE]\n\n", b"")),
    ("[DONE] is not the end", lambda raw: raw + b"data: [DONE]\n\n"),
    ("no named events", lambda raw: raw.replace(b"data", b"event: x\ndata", 1)),
    ("[DONE] beside an error", lambda raw: raw + b'data: {"error": {"message": "x"}}\n\n'),
    ("an error without a message", lambda raw: b'data: {"error": "x"}\n\n'),
)


@pytest.mark.parametrize(("fault", "plant"), LINES, ids=[fault for fault, _ in LINES])
def test_a_fault_in_the_bytes_is_seen(fault: str, plant: Callable[[bytes], bytes]) -> None:
    found = faults(CHAT, USAGE_ASKED, SSE, plant(framed(CHAT, called())))
    assert any(fault in one for one in found), found


@pytest.mark.parametrize(
    ("fault", "headers"),
    [
        ("no event stream", {**SSE, "content-type": "application/json"}),
        ("compressed", {**SSE, "content-encoding": "gzip"}),
        ("'cache-control' is not", {**SSE, "cache-control": "no-store"}),
        ("'x-accel-buffering' is not", {**SSE, "x-accel-buffering": "yes"}),
    ],
)
def test_a_fault_in_the_headers_is_seen(fault: str, headers: dict[str, str]) -> None:
    (found,) = faults(CHAT, USAGE_ASKED, headers, framed(CHAT, called()))
    assert fault in found


def delta(place: int, **fields: Any) -> Plant:
    return lambda chunks: chunks[place]["choices"][0]["delta"].update(fields)


def call(place: int, **fields: Any) -> Plant:
    return lambda chunks: chunks[place]["choices"][0]["delta"]["tool_calls"][0].update(fields)


def choice(place: int, **fields: Any) -> Plant:
    return lambda chunks: chunks[place]["choices"][0].update(fields)


def chunk(place: int, **fields: Any) -> Plant:
    return lambda chunks: chunks[place].update(fields)


def without(place: int, *keys: str | int) -> Plant:
    """Remove what a path of keys leads to."""

    def plant(chunks: Chunks) -> None:
        at: Any = chunks[place]
        for key in keys[:-1]:
            at = at[key]
        del at[keys[-1]]

    return plant


def drop(place: int) -> Plant:
    return lambda chunks: chunks.pop(place)


def again(place: int) -> Plant:
    return lambda chunks: chunks.insert(place, json.loads(json.dumps(chunks[place])))


def inside(place: int, key: str, **fields: Any) -> Plant:
    return lambda chunks: chunks[place][key].update(fields)


PLANTS: tuple[tuple[str, str, Plant], ...] = (
    (CHAT, "the role does not come once", without(0, "choices", 0, "delta", "role")),
    (CHAT, "the role does not come once", delta(0, role="")),
    (CHAT, "the role does not come once", delta(1, role="assistant")),
    (CHAT, "'choices' is no array", chunk(1, choices=None)),
    (CHAT, "without its index", without(1, "choices", 0, "index")),
    (CHAT, "without a delta", choice(1, delta=None)),
    (CHAT, "without the key 'finish_reason'", without(1, "choices", 0, "finish_reason")),
    (CHAT, "finish_reason is not given once", choice(6, finish_reason=None)),
    (CHAT, "finish_reason is not given once", choice(1, finish_reason="stop")),
    (CHAT, "no client knows the finish_reason", choice(6, finish_reason="insufficient_system_resource")),
    (CHAT, "does not say whether tools are called", choice(6, finish_reason="stop")),
    (CHAT, "usage does not come once", chunk(6, usage={"total_tokens": 3})),
    (CHAT, "usage does not come once", chunk(7, usage=None)),
    (CHAT, "a chunk of usage alone", drop(7)),
    (CHAT, "'id' is not the same", chunk(2, id="chatcmpl-2")),
    (CHAT, "'model' is not the same", chunk(2, model="n")),
    (CHAT, "'created' is not the same", without(2, "created")),
    (CHAT, "'content' is no text", delta(1, content=["x"])),
    (CHAT, "'content' is null with nothing", delta(1, content=None)),
    (CHAT, "numbered from 0", call(2, index=1)),
    (CHAT, "numbered from 0", without(2, "choices", 0, "delta", "tool_calls", 0, "index")),
    (CHAT, "begins without id, type and name", call(2, id="")),
    (CHAT, "begins without id, type and name", without(2, "choices", 0, "delta", "tool_calls", 0, "type")),
    (CHAT, "come again", call(3, id="call_0")),
    (CHAT, "come again", call(3, function={"name": "f", "arguments": '{"a":'})),
    (CHAT, "two calls have one id", call(5, id="call_0")),
    (CHAT, "arguments are no text", call(3, function={"arguments": {"a": 1}})),
    (CHAT, "are no JSON object", call(4, function={"arguments": ""})),
    (COMPLETIONS, "a choice without text", choice(0, text=None)),
    (COMPLETIONS, "without index or 'finish_reason'", without(0, "choices", 0, "finish_reason")),
    (COMPLETIONS, "finish_reason is not given once", choice(1, finish_reason=None)),
    (COMPLETIONS, "usage does not come once", chunk(1, usage={"total_tokens": 3})),
    (MESSAGES, "'message_start' is not the first", drop(0)),
    (MESSAGES, "'message_start' comes again", again(0)),
    (MESSAGES, "'message_start' has no usage", without(0, "message", "usage")),
    (MESSAGES, "no empty message of the assistant", inside(0, "message", role="user")),
    (MESSAGES, "lacks id, model", inside(0, "message", id="")),
    (MESSAGES, "a block begins before the last", drop(4)),
    (MESSAGES, "blocks are not numbered", chunk(5, index=0)),
    (MESSAGES, "clients know no block", inside(5, "content_block", type="answer")),
    (MESSAGES, "begins without what it needs", without(8, "content_block", "id")),
    (MESSAGES, "a delta outside its block", chunk(6, index=0)),
    (MESSAGES, "in a block of 'text'", inside(6, "delta", type="thinking_delta")),
    (MESSAGES, "a block ends that is not open", again(7)),
    (MESSAGES, "the input of a tool", inside(9, "delta", partial_json="[1]")),
    (MESSAGES, "thinking is not signed", drop(3)),
    (MESSAGES, "'message_delta' does not come once", again(11)),
    (MESSAGES, "no client knows the stop_reason", inside(11, "delta", stop_reason="stop")),
    (MESSAGES, "does not say whether tools are called", inside(11, "delta", stop_reason="end_turn")),
    (MESSAGES, "'message_delta' has no usage", without(11, "usage")),
    (MESSAGES, "'message_stop' without", drop(11)),
    (MESSAGES, "no 'message_stop'", drop(12)),
    (MESSAGES, "after the end", again(12)),
    (MESSAGES, "clients know no event", chunk(6, type="progress")),
    (MESSAGES, "an error without type", chunk(6, type="error", error="x")),
    (RESPONSES, "not numbered from 0", chunk(4, sequence_number=7)),
    (RESPONSES, "does not begin with", drop(1)),
    (RESPONSES, "does not end once", drop(13)),
    (RESPONSES, "the status of the response", inside(13, "response", status="in_progress")),
    (RESPONSES, "has no usage", without(13, "response", "usage")),
    (RESPONSES, "changes its id", inside(13, "response", id="resp_2")),
    (RESPONSES, "is not what its items were", inside(13, "response", output=[])),
    (RESPONSES, "items are not numbered", chunk(9, output_index=2)),
    (RESPONSES, "before it is added or after", again(12)),
    (RESPONSES, "another item than its own", chunk(4, item_id="msg_2")),
    (RESPONSES, "an item changes its id", inside(8, "item", id="msg_2")),
    (RESPONSES, "is not what its deltas were", chunk(6, text="Hallo")),
    (RESPONSES, "a call without call_id", inside(12, "item", call_id="")),
    (RESPONSES, "a message's text is not", drop(4)),
    (RESPONSES, "an error without a message", chunk(13, type="error")),
)


@pytest.mark.parametrize(("path", "fault", "plant"), PLANTS, ids=[f"{p}: {fault}" for p, fault, _ in PLANTS])
def test_a_broken_rule_is_seen(path: str, fault: str, plant: Plant) -> None:
    chunks = SOUND[path]()
    plant(chunks)
    found = faults(path, USAGE_ASKED, SSE, framed(path, chunks))
    assert any(fault in one for one in found), found


def test_an_event_that_its_line_does_not_name_is_seen() -> None:
    for path in (MESSAGES, RESPONSES):
        raw = framed(path, SOUND[path]()).replace(b"event: ", b"event: x", 1)
        assert any("is not named" in one for one in faults(path, {}, SSE, raw))


def test_usage_alone_is_for_those_who_ask() -> None:
    raw = framed(CHAT, called())
    assert faults(CHAT, {}, SSE, raw) == [
        "a chunk of usage alone comes to those who ask for it, and to no others"
    ]
