"""Messages as answers, streamed and whole; Anthropic's own client makes the same of both."""

from typing import Any

import msgspec
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from hypothesis import given
from hypothesis import strategies as st

from recipe.events import Event, Finish, Text, Thinking, ToolArguments, ToolCall
from recipe.protocols.messages_answer import AnswerHead, MessagesStream, answer
from recipe.usage import Buckets, messages_usage

HEAD = AnswerHead(request_id="0199", model="m")
PROMPT = Buckets(hit=64, owed=3, miss=6, output=0)
USAGE = Buckets(hit=64, owed=3, miss=6, output=3)
PLAIN: list[Event] = [Text("Par"), Text("is"), Finish("stop")]
EVERYTHING: list[Event] = [
    *(Thinking("h"), Thinking("m"), Text("I "), Text("look.")),
    *(ToolCall(0, "f"), ToolArguments(0, '{"a":'), ToolArguments(0, "1}")),
    *(ToolCall(1, "g"), ToolArguments(1, "{}"), Finish("tool_calls")),
]


def stream(events: list[Event]) -> list[dict[str, Any]]:
    messages = MessagesStream(HEAD)
    return [*messages.opening(PROMPT), *messages.deltas(events), *messages.closing(USAGE)]


def kinds(chunks: list[dict[str, Any]]) -> list[str]:
    return [chunk["type"] for chunk in chunks]


def test_a_stream_opens_its_message_its_block_and_closes_both() -> None:
    assert kinds(stream(PLAIN)) == [
        *("message_start", "content_block_start", "content_block_delta", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]


def test_blocks_follow_each_other_by_index_and_never_overlap() -> None:
    chunks = [chunk for chunk in stream(EVERYTHING) if chunk["type"].startswith("content_block")]
    begun = [chunk["content_block"]["type"] for chunk in chunks if chunk["type"] == "content_block_start"]
    assert begun == ["thinking", "text", "tool_use", "tool_use"]
    indexes = [chunk["index"] for chunk in chunks]
    assert indexes == sorted(indexes)
    for index in range(4):
        of_block = [chunk["type"] for chunk in chunks if chunk["index"] == index]
        assert (of_block[0], of_block[-1]) == ("content_block_start", "content_block_stop")
        assert of_block.count("content_block_start") == of_block.count("content_block_stop") == 1


def test_the_start_says_how_the_prompt_was_served_and_the_delta_what_is_billed() -> None:
    start, *_, delta, _ = stream(PLAIN)
    assert start["message"]["usage"] == messages_usage(PROMPT)
    assert delta["usage"] == messages_usage(USAGE)
    assert [kind for kind in kinds(stream(EVERYTHING)) if kind == "message_delta"] == ["message_delta"]


def test_thinking_is_signed_before_its_block_ends() -> None:
    chunks = stream([Thinking("hm"), Text("Paris"), Finish("stop")])
    last, stop = chunks[3:5]
    assert last["delta"] == {"type": "signature_delta", "signature": "msg_0199"}
    assert (stop["type"], stop["index"]) == ("content_block_stop", 0)


def test_ids_of_calls_are_the_requests_and_their_places() -> None:
    calls = [
        chunk["content_block"]["id"]
        for chunk in stream(EVERYTHING)
        if chunk.get("content_block", {}).get("type") == "tool_use"
    ]
    assert calls == ["toolu_0199_0", "toolu_0199_1"]


@pytest.mark.parametrize(
    ("finish", "reason", "sequence"),
    [
        (Finish("stop"), "end_turn", None),
        (Finish("length"), "max_tokens", None),
        (Finish("tool_calls"), "tool_use", None),
        (Finish("stop", "END"), "stop_sequence", "END"),
    ],
)
def test_why_an_answer_ended(finish: Finish, reason: str, sequence: str | None) -> None:
    ending = stream([Text("a"), finish])[-2]["delta"]
    assert ending == {"stop_reason": reason, "stop_sequence": sequence}
    whole = answer(HEAD, [Text("a"), finish], USAGE)
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)


def test_an_answer_at_once_holds_the_same() -> None:
    assert answer(HEAD, EVERYTHING, USAGE) == {
        "id": "msg_0199",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "msg_0199"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_0199_0", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "toolu_0199_1", "name": "g", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": messages_usage(USAGE),
    }


def test_a_call_that_was_cut_off_has_no_input_and_says_why() -> None:
    cut = answer(HEAD, [ToolCall(0, "f"), ToolArguments(0, '{"a": "b'), Finish("length")], USAGE)
    assert cut["content"][0]["input"] == {}
    assert cut["stop_reason"] == "max_tokens"


def test_an_empty_answer_has_no_blocks() -> None:
    assert answer(HEAD, [Finish("stop")], USAGE)["content"] == []
    assert kinds(stream([Finish("stop")])) == ["message_start", "message_delta", "message_stop"]


def test_a_stream_cannot_be_closed_before_the_answer_ended() -> None:
    messages = MessagesStream(HEAD)
    messages.deltas([Text("Par")])
    with pytest.raises(AssertionError):
        messages.closing(USAGE)
    with pytest.raises(AssertionError):
        answer(HEAD, [Text("Par")], USAGE)


PIECE = st.text(min_size=1, max_size=3)
SPOKEN = st.lists(st.builds(Text, PIECE) | st.builds(Thinking, PIECE), max_size=6)
INPUTS = st.lists(st.dictionaries(st.text(max_size=2), st.integers(-9, 9), max_size=2), max_size=3)


@given(SPOKEN, INPUTS, st.integers(1, 9))
def test_what_anthropics_client_makes_of_a_stream_is_the_answer_at_once(
    spoken: list[Event], inputs: list[dict[str, int]], cut: int
) -> None:
    events = [*spoken]
    for index, arguments in enumerate(inputs):
        text = msgspec.json.encode(arguments).decode()
        pieces = [text[start : start + cut] for start in range(0, len(text), cut)]
        events += [ToolCall(index, "f"), *(ToolArguments(index, piece) for piece in pieces)]
    events.append(Finish("tool_calls" if inputs else "stop"))
    message: Any = None
    buffers: dict[int, bytes] = {}
    for chunk in stream(events):
        event: Any = chunk
        message = accumulate_event(event=event, current_snapshot=message, json_bufs=buffers)
    made = message.to_dict()
    whole = answer(HEAD, events, USAGE)
    assert whole.pop("usage").items() <= made["usage"].items()
    assert whole.items() <= made.items()
