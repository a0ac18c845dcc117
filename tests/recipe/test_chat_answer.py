"""Chat completion answers, in the form eight SDKs were seen to accept."""

from typing import Any

import pytest

from recipe.events import Event, Finish, Text, Thinking
from recipe.protocols.chat import AnswerHead, ChatStream, answer
from recipe.usage import Buckets, chat_usage

HEAD = AnswerHead(id="0199", model="m", created=1_790_000_000)
USAGE = Buckets(hit=64, miss=6, output=3)
PLAIN: list[Event] = [Text("Par"), Text("is"), Finish("stop")]
THOUGHT: list[Event] = [Thinking("hm"), Text("Paris"), Finish("length")]


def stream(
    events: list[Event], *, include_usage: bool = False, thinking: bool = False
) -> list[dict[str, Any]]:
    chat = ChatStream(HEAD, include_usage=include_usage, thinking=thinking)
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
        assert (chunk["id"], chunk["model"], chunk["created"]) == ("0199", "m", 1_790_000_000)
        assert chunk["object"] == "chat.completion.chunk"


def test_an_answer_at_once_holds_the_same() -> None:
    whole = answer(HEAD, THOUGHT, USAGE)
    assert whole["object"] == "chat.completion"
    assert whole["usage"] == chat_usage(USAGE)
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"] == {"role": "assistant", "content": "Paris", "reasoning_content": "hm"}


def test_an_empty_answer_is_an_empty_string_and_never_null() -> None:
    assert answer(HEAD, [Finish("stop")], USAGE)["choices"][0]["message"] == {
        "role": "assistant",
        "content": "",
    }


def test_a_stream_cannot_be_closed_before_the_answer_ended() -> None:
    chat = ChatStream(HEAD, include_usage=False)
    chat.deltas([Text("Par")])
    with pytest.raises(AssertionError):
        chat.closing(USAGE)
    with pytest.raises(AssertionError):
        answer(HEAD, [Text("Par")], USAGE)
