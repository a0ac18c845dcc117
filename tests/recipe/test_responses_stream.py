"""Responses events, each in the type that the `openai` package has for it, read strictly."""

from itertools import chain
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from recipe.events import Drawn, Event, Finish, Likely, Text, Thinking, ToolArguments, ToolCall
from recipe.protocols.responses import read
from recipe.protocols.responses_stream import ResponseHead, ResponsesStream, answer
from recipe.usage import Buckets, read_usage, responses_usage
from tests.recipe.test_responses_request import NAMESPACE, PATCH, TOOL, USER

OFFICIAL: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
USAGE = Buckets(hit=64, miss=6, output=9, reasoning=2)
BODY = {"model": "m", "input": [USER], "tools": [TOOL, NAMESPACE, PATCH], "instructions": "be nice"}
ASKED = read(msgspec.json.encode(BODY))
HEAD = ResponseHead("0199", "m", 1_790_000_000, ASKED.echo, ASKED.namespaces, ASKED.custom_tools)
(NAMESPACED,) = ASKED.namespaces

PLAIN: list[Event] = [Text("Par"), Text("is"), Finish("stop")]
THOUGHT: list[Event] = [Thinking("h"), Thinking("m"), Text("Paris"), Finish("stop")]
CALLS: list[Event] = [
    Text("Let me see."),
    ToolCall(0, "f"),
    ToolArguments(0, '{"a"'),
    ToolArguments(0, ": 1}"),
    ToolCall(1, NAMESPACED),
    ToolArguments(1, "{}"),
    Finish("tool_calls"),
]
PATCHES: list[Event] = [
    ToolCall(0, "apply_patch"),
    ToolArguments(0, '{"input": "*** Be'),
    ToolArguments(0, 'gin\\n"}'),
    Finish("tool_calls"),
]
CUT_TEXT: list[Event] = [Text("Par"), Finish("length")]
CUT_CALL: list[Event] = [ToolCall(0, "f"), ToolArguments(0, '{"a"'), Finish("length")]
CUT_PATCH: list[Event] = [*PATCHES[:2], Finish("length")]
EMPTY: list[Event] = [Finish("stop")]
ANSWERS = [PLAIN, THOUGHT, CALLS, PATCHES, CUT_TEXT, CUT_CALL, CUT_PATCH, EMPTY]
FAILURE = {"message": "the worker failed", "type": "x", "param": None, "code": "service_unavailable"}


def stream(events: list[Event], head: ResponseHead = HEAD) -> list[dict[str, Any]]:
    written = ResponsesStream(head)
    pieces = [written.deltas([event]) for event in events]  # made before the opening, as a writer does
    return [*written.opening(), *chain(*pieces), *written.closing(USAGE)]


def kinds(chunks: list[dict[str, Any]]) -> list[str]:
    return [chunk["type"].removeprefix("response.") for chunk in chunks]


@pytest.mark.parametrize("events", ANSWERS)
def test_every_event_is_of_openais_types_and_they_are_numbered_without_a_gap(events: list[Event]) -> None:
    chunks = stream(events)
    for chunk in chunks:
        OFFICIAL.validate_json(msgspec.json.encode(chunk), strict=True)
    assert [chunk["sequence_number"] for chunk in chunks] == list(range(len(chunks)))


def test_a_response_that_begins_has_no_output_yet() -> None:
    assert [chunk["response"]["output"] for chunk in stream(THOUGHT)[:2]] == [[], []]


def test_an_answer_in_text_has_openais_sequence() -> None:
    assert kinds(stream(PLAIN)) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


def test_reasoning_is_an_item_of_its_own_before_the_text() -> None:
    chunks = stream(THOUGHT)
    assert kinds(chunks)[2:9] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    reasoning, message = chunks[-1]["response"]["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert (reasoning["id"], message["id"]) == ("rs_0199_0", "msg_0199_1")
    assert "encrypted_content" not in reasoning


def test_reasoning_carries_something_opaque_where_it_was_asked_for() -> None:
    """A client that keeps reasoning by its encrypted content sends the item back, and it is read again."""
    asked = read(msgspec.json.encode({**BODY, "include": ["reasoning.encrypted_content"]}))
    head = ResponseHead("0199", "m", 0, asked.echo, encrypted=asked.encrypted)
    chunks = stream(THOUGHT, head)
    items = [chunk["item"] for chunk in chunks if "item" in chunk][:2]
    assert all(item["encrypted_content"] for item in items)
    output = chunks[-1]["response"]["output"]
    history = {"input": [USER, *output, USER], "reasoning": {"effort": "high"}}
    again = read(msgspec.json.encode({**BODY, **history}))
    assert [message.reasoning_content for message in again.conversation.messages][2] == "hm"


def test_calls_stream_their_arguments_and_names_of_a_namespace_are_split_again() -> None:
    chunks = stream(CALLS)
    added = [chunk["item"] for chunk in chunks if chunk["type"] == "response.output_item.added"]
    assert [item["type"] for item in added] == ["message", "function_call", "function_call"]
    assert [item.get("arguments") for item in added[1:]] == ["", ""]
    deltas = [chunk for chunk in chunks if chunk["type"] == "response.function_call_arguments.delta"]
    assert [(delta["item_id"], delta["delta"]) for delta in deltas] == [
        ("fc_0199_1", '{"a"'),
        ("fc_0199_1", ": 1}"),
        ("fc_0199_2", "{}"),
    ]
    message, first, second = chunks[-1]["response"]["output"]
    assert message["phase"] == "commentary"
    assert (first["name"], first["call_id"], first["arguments"]) == ("f", "call_0199_0", '{"a": 1}')
    assert (second["namespace"], second["name"], second["call_id"]) == ("ns", "g", "call_0199_1")


def test_what_was_called_comes_back_as_the_same_calls() -> None:
    output = answer(HEAD, CALLS, USAGE)["output"]
    told = [{"type": "function_call_output", "call_id": f"call_0199_{n}", "output": "1"} for n in range(2)]
    again = read(msgspec.json.encode({**BODY, "input": [USER, *output, *told]}))
    (called,) = (message for message in again.conversation.messages if message.tool_calls)
    assert [(call.name, call.arguments) for call in called.tool_calls or ()] == [
        ("f", '{"a": 1}'),
        (NAMESPACED, "{}"),
    ]


def test_a_custom_tools_input_is_text_and_not_json() -> None:
    chunks = stream(PATCHES)
    assert kinds(chunks)[2:] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    (call,) = chunks[-1]["response"]["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", "*** Begin\n")


@pytest.mark.parametrize("events", [CUT_TEXT, CUT_CALL, CUT_PATCH])
def test_an_answer_that_was_cut_is_incomplete(events: list[Event]) -> None:
    last = stream(events)[-1]
    assert last["type"] == "response.incomplete"
    response = last["response"]
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert response["output"][-1]["status"] == "incomplete"


def test_usage_is_told_once_at_the_end() -> None:
    responses = [chunk["response"] for chunk in stream(PLAIN) if "response" in chunk]
    assert [response["usage"] for response in responses] == [None, None, responses_usage(USAGE)]
    assert read_usage(responses_usage(USAGE)) == USAGE
    assert responses_usage(USAGE)["input_tokens_details"]["cached_tokens"] == 64
    assert responses_usage(USAGE)["output_tokens_details"]["reasoning_tokens"] == 2


def test_each_response_says_what_was_asked() -> None:
    for chunk in stream(PLAIN):
        if "response" in chunk:
            official = Response.model_validate_json(msgspec.json.encode(chunk["response"]), strict=True)
            assert (official.id, official.model, official.instructions) == ("resp_0199", "m", "be nice")
            assert [tool.type for tool in official.tools] == ["function", "namespace", "custom"]
            assert (official.tool_choice, official.parallel_tool_calls) == ("auto", True)


@pytest.mark.parametrize("events", ANSWERS)
def test_a_whole_answer_is_what_the_stream_ends_with(events: list[Event]) -> None:
    assert answer(HEAD, events, USAGE) == stream(events)[-1]["response"]


PIECES = st.tuples(st.sampled_from([Text, Thinking, ToolCall]), st.text(min_size=1, max_size=3))


@given(st.lists(PIECES, max_size=8), st.sampled_from(["stop", "length", "tool_calls"]))
def test_whatever_an_answer_holds_its_items_and_deltas_say_it_all(pieces: list[Any], reason: Any) -> None:
    events: list[Event] = []
    for kind, text in pieces:
        calls = sum(isinstance(event, ToolCall) for event in events)
        events += [ToolCall(calls, "f"), ToolArguments(calls, text)] if kind is ToolCall else [kind(text)]
    chunks = stream([*events, Finish(reason)])
    for chunk in chunks:
        OFFICIAL.validate_json(msgspec.json.encode(chunk), strict=True)
    said = "".join(text for _, text in pieces)
    assert "".join(chunk.get("delta", "") for chunk in chunks) == said
    items = chunks[-1]["response"]["output"]
    assert said == "".join(
        item.get("arguments", "") + "".join(part["text"] for part in item.get("content", ()))
        for item in items
    )
    done = [chunk["item"] for chunk in chunks if chunk["type"] == "response.output_item.done"]
    assert done == items
    assert len({item["id"] for item in items}) == len(items)


@pytest.mark.parametrize("head", [HEAD, ResponseHead.unknown()])
@pytest.mark.parametrize("opened", [True, False])
def test_a_failure_ends_with_a_failed_response_behind_an_error(head: ResponseHead, opened: bool) -> None:
    """openai/codex#41340: without a last word of the response, clients wait or ask again."""
    written = ResponsesStream(head)
    chunks = [*written.opening(), *written.deltas([Text("Par")])] if opened else []
    chunks += written.failing(FAILURE)
    for chunk in chunks:
        OFFICIAL.validate_json(msgspec.json.encode(chunk), strict=True)
    assert [chunk["sequence_number"] for chunk in chunks] == list(range(len(chunks)))
    assert kinds(chunks)[:2] == ["created", "in_progress"]
    assert kinds(chunks)[-2:] == ["error", "failed"]
    assert chunks[-2]["error"] == FAILURE
    response = chunks[-1]["response"]
    assert (response["status"], response["usage"]) == ("failed", None)
    assert response["error"]["message"] == "the worker failed"


def drawn(token: str, *, reasoning: bool = False) -> Drawn:
    likely = Likely(token.encode(), -0.5)
    return Drawn(likely, (likely, Likely(b"?", -2.0)), reasoning=reasoning)


BATCHES: list[list[Event]] = [
    [Thinking("hm"), Text("Par"), drawn("hm", reasoning=True), drawn("Par")],
    [drawn("is")],  # held back: it might begin a stop string
    [Text("is."), drawn(".")],
    [drawn("<call>")],
    [ToolCall(0, "f"), drawn("f")],
    [ToolArguments(0, "{}"), drawn("{}")],
    [Text("Done"), drawn("Done")],
    [drawn("!")],
    [Finish("stop")],
]


def tokens(told: list[dict[str, Any]]) -> list[str]:
    return [one["token"] for one in told]


def test_log_probabilities_are_told_with_the_text_of_their_tokens_and_of_messages_alone() -> None:
    written = ResponsesStream(HEAD)
    chunks = [*chain(*map(written.deltas, BATCHES)), *written.closing(USAGE)]
    for chunk in chunks:
        OFFICIAL.validate_json(msgspec.json.encode(chunk), strict=True)
    deltas = [one for one in chunks if one["type"] == "response.output_text.delta"]
    assert [tokens(one["logprobs"]) for one in deltas] == [["Par"], ["is", "."], ["Done"]]
    done = [one for one in chunks if one["type"] == "response.output_text.done"]
    assert [tokens(one["logprobs"]) for one in done] == [["Par", "is", ".", "<call>"], ["Done", "!"]]
    messages = [item for item in chunks[-1]["response"]["output"] if item["type"] == "message"]
    assert [tokens(item["content"][0]["logprobs"]) for item in messages] == [
        ["Par", "is", ".", "<call>"],
        ["Done", "!"],
    ]
    assert messages[0]["content"][0]["logprobs"][0] == {
        "token": "Par",
        "logprob": -0.5,
        "bytes": [80, 97, 114],
        "top_logprobs": [
            {"token": "Par", "logprob": -0.5, "bytes": [80, 97, 114]},
            {"token": "?", "logprob": -2.0, "bytes": [63]},
        ],
    }


def test_a_whole_answer_tells_the_log_probabilities_that_its_stream_does() -> None:
    written = ResponsesStream(HEAD)
    for batch in BATCHES:
        written.deltas(batch)
    streamed = written.closing(USAGE)[-1]["response"]
    assert answer(HEAD, list(chain(*BATCHES)), USAGE) == streamed
