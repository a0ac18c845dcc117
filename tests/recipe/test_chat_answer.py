"""Chat completion answers, in the form eight SDKs were seen to accept."""

from typing import Any

import pytest

from recipe.events import Drawn, Event, Finish, Likely, Text, Thinking, ToolArguments, ToolCall
from recipe.protocols.chat_answer import AnswerHead, AnswerStyle, ChatStream, answer
from recipe.usage import Buckets, chat_usage

HEAD = AnswerHead(id="chatcmpl-0199-ab", model="m", created=1_790_000_000)
USAGE = Buckets(hit=64, miss=6, output=3)
PLAIN: list[Event] = [Text("Par"), Text("is"), Finish("stop")]
CALLS: list[Event] = [
    Text("Look:"),
    ToolCall(0, "get_weather"),
    *(ToolArguments(0, '{"ci'), ToolArguments(0, 'ty": 1}')),
    ToolCall(1, "a_b"),
    ToolArguments(1, "{}"),
    Finish("tool_calls"),
]
THOUGHT: list[Event] = [Thinking("hm"), Text("Paris"), Finish("length")]


def stream(events: list[Event], **style: Any) -> list[dict[str, Any]]:
    chat = ChatStream(HEAD, AnswerStyle(**style))
    return [*chat.opening(USAGE), *chat.deltas(events), *chat.closing(USAGE)]


def test_the_first_delta_carries_the_role_and_no_text() -> None:
    chunks = stream(PLAIN)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])


def test_deltas_concatenate_to_the_answer() -> None:
    deltas = [chunk["choices"][0]["delta"] for chunk in stream(PLAIN)]
    assert "".join(delta["content"] for delta in deltas) == "Paris"


@pytest.mark.parametrize("events", [PLAIN, THOUGHT])
def test_every_chunk_has_a_finish_reason_key_and_one_has_a_reason(events: list[Event]) -> None:
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in stream(events, thinking=events is THOUGHT)]
    expected = "length" if events is THOUGHT else "stop"
    assert [reason for reason in reasons if reason is not None] == [expected]
    assert reasons[-1] == expected


def test_usage_rides_on_the_finish_chunk() -> None:
    chunks = stream(PLAIN)
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["usage"] == chat_usage(USAGE)


def test_usage_that_was_asked_for_comes_once_in_a_chunk_without_choices() -> None:
    chunks = stream(PLAIN, include_usage=True)
    assert chunks[-1]["choices"] == []
    assert [chunk["usage"] for chunk in chunks] == [None] * (len(chunks) - 1) + [chat_usage(USAGE)]
    assert all(chunk["choices"] for chunk in stream(PLAIN))


def test_reasoning_has_its_own_field() -> None:
    chunks = stream(THOUGHT, thinking=True)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None, "reasoning_content": ""}
    assert chunks[1]["choices"][0]["delta"] == {"content": None, "reasoning_content": "hm"}
    assert chunks[2]["choices"][0]["delta"] == {"content": "Paris", "reasoning_content": None}


def test_every_chunk_repeats_the_head() -> None:
    for chunk in stream(PLAIN, include_usage=True):
        assert (chunk["id"], chunk["model"], chunk["created"]) == (HEAD.id, "m", 1_790_000_000)
        assert chunk["object"] == "chat.completion.chunk"


def test_an_answer_at_once_holds_the_same() -> None:
    whole = answer(HEAD, AnswerStyle(), THOUGHT, USAGE)
    assert whole["object"] == "chat.completion"
    assert whole["usage"] == chat_usage(USAGE)
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"] == {"role": "assistant", "content": "Paris", "reasoning_content": "hm"}


def test_an_empty_answer_is_an_empty_string_and_never_null() -> None:
    assert answer(HEAD, AnswerStyle(), [Finish("stop")], USAGE)["choices"][0]["message"] == {
        "role": "assistant",
        "content": "",
    }


def test_a_stream_cannot_be_closed_before_the_answer_ended() -> None:
    chat = ChatStream(HEAD, AnswerStyle())
    chat.deltas([Text("Par")])
    with pytest.raises(AssertionError):
        chat.closing(USAGE)
    with pytest.raises(AssertionError):
        answer(HEAD, AnswerStyle(), [Text("Par")], USAGE)


def deltas(events: list[Event], **style: Any) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in stream(events, **style)]


def test_the_head_of_a_call_comes_once_and_later_deltas_have_index_and_arguments_alone() -> None:
    """vllm#18412, litellm#11407, opencode#37841, codex#7517; mistral.rs#1507: an index of its own from 0."""
    calls = [call for delta in deltas(CALLS) for call in delta.get("tool_calls", ())]
    head = {"type": "function", "function": {"name": "get_weather", "arguments": ""}}
    assert calls == [
        {"index": 0, "id": "call_0199ab_0", **head},
        {"index": 0, "function": {"arguments": '{"ci'}},
        {"index": 0, "function": {"arguments": 'ty": 1}'}},
        {"index": 1, "id": "call_0199ab_1", **head, "function": {"name": "a_b", "arguments": ""}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]
    assert stream(CALLS)[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_an_id_of_a_call_is_as_long_as_clients_take() -> None:
    head = AnswerHead(id="chatcmpl-01993f2e-7b1c-7d63-9a43-9c1f6a2b3c4d", model="m", created=0)
    assert head.call_id(0) == "call_01993f2e7b1c7d639a439c1f6a2b3c4d_0"
    assert len(head.call_id(99)) <= 40


def test_a_tool_goes_by_the_clients_name() -> None:
    named = deltas(CALLS, tool_names={"a_b": "a.b"})
    assert [
        call["function"]["name"] for delta in named for call in delta.get("tool_calls", ()) if "id" in call
    ] == [
        "get_weather",
        "a.b",
    ]
    whole = answer(HEAD, AnswerStyle(tool_names={"a_b": "a.b"}), CALLS, USAGE)
    assert [call["function"]["name"] for call in whole["choices"][0]["message"]["tool_calls"]] == [
        "get_weather",
        "a.b",
    ]


def test_content_is_null_only_where_there_are_calls_alone() -> None:
    """vercel/ai#14950."""
    (with_text,) = answer(HEAD, AnswerStyle(), CALLS, USAGE)["choices"]
    assert with_text["message"]["content"] == "Look:"
    assert with_text["finish_reason"] == "tool_calls"
    assert [call["function"]["arguments"] for call in with_text["message"]["tool_calls"]] == [
        '{"city": 1}',
        "{}",
    ]
    (alone,) = answer(HEAD, AnswerStyle(), CALLS[1:], USAGE)["choices"]
    assert alone["message"]["content"] is None
    assert alone["message"]["tool_calls"] == with_text["message"]["tool_calls"]


def test_a_client_of_functions_gets_its_call_as_it_asked() -> None:
    one = [*CALLS[:4], CALLS[-1]]
    pieces = [
        delta["function_call"] for delta in deltas(one, legacy_functions=True) if "function_call" in delta
    ]
    assert pieces == [
        {"name": "get_weather", "arguments": ""},
        {"arguments": '{"ci'},
        {"arguments": 'ty": 1}'},
    ]
    assert stream(one, legacy_functions=True)[-1]["choices"][0]["finish_reason"] == "function_call"
    (choice,) = answer(HEAD, AnswerStyle(legacy_functions=True), one, USAGE)["choices"]
    assert choice["message"]["function_call"] == {"name": "get_weather", "arguments": '{"city": 1}'}
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "function_call"


DRAWN = [
    Thinking("hm"),
    Drawn(Likely(b"hm", -0.5), reasoning=True),
    Text("Par"),
    Drawn(Likely(b"Par", -0.1), (Likely(b"Par", -0.1), Likely(b"\xc3", -2.5))),
]


def test_log_probabilities_ride_on_the_text_of_their_tokens_and_come_once() -> None:
    chat = ChatStream(HEAD, AnswerStyle(thinking=True))
    chunks = [chunk for events in (DRAWN[:2], DRAWN[2:]) for chunk in chat.deltas(events)]
    thought, said = (chunk["choices"][0]["logprobs"] for chunk in chunks)
    assert (thought["content"], [one["token"] for one in thought["reasoning_content"]]) == ([], ["hm"])
    (token,) = said["content"]
    assert (token["token"], token["logprob"], token["bytes"]) == ("Par", -0.1, [80, 97, 114])
    assert [one["token"] for one in token["top_logprobs"]] == ["Par", "\ufffd"]
    assert token["top_logprobs"][1]["bytes"] == [0xC3]
    whole = answer(HEAD, AnswerStyle(thinking=True), [*DRAWN, Finish("stop")], USAGE)
    told = whole["choices"][0]["logprobs"]
    assert (told["content"], told["reasoning_content"]) == (said["content"], thought["reasoning_content"])


def test_tokens_whose_text_is_held_back_are_told_all_the_same() -> None:
    (chunk,) = ChatStream(HEAD, AnswerStyle()).deltas([DRAWN[3]])
    assert chunk["choices"][0]["delta"] == {"content": ""}
    assert len(chunk["choices"][0]["logprobs"]["content"]) == 1
