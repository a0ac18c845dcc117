"""What bytes of a worker mean."""

import contextlib
import dataclasses
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import TokenChunk, TokenLogprobs
from engine.cluster.answer import AnswerGarbled, Refused, WorkerDown, read_line, read_prefill, read_refusal


def event(**choice: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode()


@pytest.mark.parametrize(
    ("line", "chunk"),
    [
        (b"\n", None),
        (b": ping\n", None),
        (b"data: [DONE]\n", None),
        (b'data: {"request_id":"x","choices":[],"usage":{"prompt_tokens":3}}', None),
        (event(token_ids=[]), None),
        (event(token_ids=[1, 2]), TokenChunk((1, 2))),
        (event(token_ids=[3], finish_reason="length"), TokenChunk((3,), "length")),
        (event(token_ids=None, finish_reason="stop"), TokenChunk((), "stop")),
    ],
)
def test_a_line_is_a_chunk_or_nothing(line: bytes, chunk: TokenChunk | None) -> None:
    assert read_line(line) == chunk


@pytest.mark.parametrize("choices", ["[]", '[{"index":0,"delta":{}}]', '[{"index":0,"token_ids":[]}]'])
def test_what_a_worker_says_of_usage_adds_no_token(choices: str) -> None:
    """diegosouzapw/OmniRoute#9750: tokens are those that came, not those that some chunk counts again."""
    usage = '{"prompt_tokens":3,"completion_tokens":9}'
    assert read_line(f'data: {{"choices":{choices},"usage":{usage}}}'.encode()) is None


@pytest.mark.parametrize("finish", ["abort", "error", "repetition", "tool_calls", ""])
def test_only_stop_and_length_are_ends_and_tokens_of_other_ends_are_dropped(finish: str) -> None:
    with pytest.raises(WorkerDown):
        read_line(event(token_ids=[1], finish_reason=finish))


def test_an_error_event_is_told_from_garbage() -> None:
    with pytest.raises(WorkerDown, match="EngineCore encountered an issue"):
        read_line(b'data: {"error":{"message":"EngineCore encountered an issue","type":"t","code":500}}')


def test_a_request_that_is_refused_behind_its_200_is_refused() -> None:
    """vLLM 0.32.0 looks at a streamed request when its answer has begun."""
    with pytest.raises(Refused, match="too long"):
        read_line(b'data: {"error":{"message":"too long","type":"BadRequestError","code":400}}')


def likely(token_id: int, logprob: float, rank: int | None) -> dict[str, object]:
    return {"token_id": token_id, "logprob": logprob, "rank": rank}


@pytest.mark.parametrize(
    ("drawn", "top"),
    [
        (likely(5, -0.5, 1), ((5, -0.5), (6, -1.0))),
        (likely(9, -7.0, 40), ((5, -0.5), (6, -1.0))),
        (likely(6, -1.0, 2), ((5, -0.5), (6, -1.0))),
    ],
)
def test_the_likeliest_are_told_whether_or_not_the_drawn_token_is_one(drawn, top) -> None:
    """vLLM puts the drawn token first and cuts the others to as many as were asked for."""
    rest = [likely(5, -0.5, 1), likely(6, -1.0, 2), likely(7, -2.0, 3)]
    told = [drawn, *(each for each in rest if each["token_id"] != drawn["token_id"])][:3]
    content = [{**drawn, "top_logprobs": told}]
    line = event(token_ids=[drawn["token_id"]], logprobs={"content": content})
    expected = TokenLogprobs(drawn["token_id"], drawn["logprob"], top)
    assert read_line(line, 2) == TokenChunk((drawn["token_id"],), None, (expected,))
    assert read_line(line) == TokenChunk((drawn["token_id"],), None, (dataclasses.replace(expected, top=()),))


def test_log_probabilities_of_other_tokens_are_garbage() -> None:
    with pytest.raises(AnswerGarbled, match="other tokens"):
        read_line(event(token_ids=[1, 2], logprobs={"content": [likely(1, -1.0, 1)]}))


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: b"data: " + tail))
def test_no_line_raises_anything_else(line: bytes) -> None:
    with contextlib.suppress(AnswerGarbled, WorkerDown, Refused):
        read_line(line)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "error", "index", "token_ids", "kv_transfer_params"]), inner
        )
    ),
    max_leaves=8,
)


@given(json_values)
def test_no_json_raises_anything_else(value: object) -> None:
    body = json.dumps(value).encode()
    for read in (read_prefill, lambda body: read_line(b"data: " + body)):
        with contextlib.suppress(AnswerGarbled, WorkerDown, Refused):
            read(body)
    assert isinstance(read_refusal(body), str)


@pytest.mark.parametrize("read", [read_prefill, lambda body: read_line(b"data: " + body)])
@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[{"index":0,"finish_reason":"\xff"}]}',
        b'{"x":' + b"[" * 100_000,
        b'{"choices":[{"index":0,"token_ids":[99999999999999999999],"finish_reason":"stop"}]}',
    ],
    ids=["not UTF-8", "nested without end", "a token no vocabulary has"],
)
def test_hostile_json_is_garbage(read: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(AnswerGarbled):
        read(body)
