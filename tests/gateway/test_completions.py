"""Completions from socket to ledger, by the official `openai` package where a client's eyes count."""

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest

from engine.api import EngineFailed, TokenChunk, TokenLogprobs
from tests.gateway.conftest import CREDIT, ROW, House
from tests.gateway.doubles import END, MODEL, Play, says


@pytest.fixture
async def client(house: House) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=house.key, max_retries=0) as client:
        yield client


async def test_a_whole_answer_tells_exactly_what_is_billed(house: House, client: openai.AsyncOpenAI) -> None:
    house.engine.play = Play(hit_tokens=2)
    answer = await client.completions.create(model=MODEL, prompt="def f(", max_tokens=50)
    assert (answer.object, answer.choices[0].text, answer.choices[0].finish_reason) == (
        "text_completion",
        "Hello",
        "stop",
    )
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 6)
    (row,) = await house.settled()
    assert (row.cache_hit, row.cache_miss, row.output) == (2, 4, 6)
    assert row.charge == 2 * ROW.standard.hit + 4 * ROW.standard.miss + 6 * ROW.standard.output
    assert await house.balance() == CREDIT - row.charge
    assert answer.id == f"cmpl-{row.request_id}"
    assert house.engine.generations[0].request.prompt_ids == tuple(map(ord, "def f("))


async def test_a_stream_ends_with_one_reason_the_usage_and_done(
    house: House, client: openai.AsyncOpenAI
) -> None:
    stream = await client.completions.create(
        model=MODEL, prompt="def f(", stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "Hello"
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert [reason for reason in reasons if reason] == ["stop"]
    (row,) = await house.settled()
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == row.output == 6


async def test_log_probabilities_are_told_in_columns(house: House, client: openai.AsyncOpenAI) -> None:
    told = [TokenLogprobs(ord(c), -0.5, ((ord(c), -0.5), (ord("x"), -2.0))) for c in "Hi"]
    house.engine.play = Play(
        [TokenChunk((ord(c),), None, (one,)) for c, one in zip("Hi", told, strict=True)]
        + [TokenChunk((END,), "stop", (TokenLogprobs(END, -0.1, ()),))]
    )
    whole = await client.completions.create(model=MODEL, prompt="def f(", logprobs=2)
    logprobs = whole.choices[0].logprobs
    assert house.engine.generations[0].request.sampling.logprobs == 2
    assert logprobs is not None
    assert (logprobs.tokens, logprobs.token_logprobs, logprobs.text_offset) == (
        ["H", "i"],
        [-0.5] * 2,
        [0, 1],
    )
    assert logprobs.top_logprobs == [{"H": -0.5, "x": -2.0}, {"i": -0.5, "x": -2.0}]
    stream = await client.completions.create(model=MODEL, prompt="def f(", logprobs=2, stream=True)
    listed = [choice.logprobs async for chunk in stream for choice in chunk.choices if choice.logprobs]
    assert [token for one in listed for token in one.tokens or ()] == ["H", "i"]
    assert [offset for one in listed for offset in one.text_offset or ()] == [0, 1]


@pytest.mark.parametrize("path", ["/v1/completions", "/completions", "/beta/completions"])
async def test_each_base_url_leads_to_it(house: House, path: str) -> None:
    document = {"model": MODEL, "prompt": "def f(", "stream": True}
    async with house.session.post(f"{house.url}{path}", json=document, headers=house.headers) as answer:
        text = (await answer.read()).decode()
    assert answer.status == 200
    assert text.endswith("data: [DONE]\n\n")


async def test_a_stream_that_breaks_raises(house: House, client: openai.AsyncOpenAI) -> None:
    house.engine.play = Play([says("Hel"), EngineFailed("decode-0", "killed")])
    stream = await client.completions.create(model=MODEL, prompt="def f(", stream=True)
    with pytest.raises(openai.APIError, match="worker failed"):
        async for _ in stream:
            pass
    assert (await house.settled())[0].charge == 0


async def test_leaving_stops_the_generation(house: House, client: openai.AsyncOpenAI) -> None:
    house.engine.play = Play([says("Hel"), asyncio.Event()])
    stream = await client.completions.create(model=MODEL, prompt="def f(", stream=True)
    async for chunk in stream:
        if chunk.choices[0].text:
            break
    await stream.close()
    (row,) = await house.settled()
    assert (row.status, row.output) == ("aborted", 3)
    assert house.engine.running == 0


async def test_what_is_not_served_is_refused_before_anything_happens(
    house: House, client: openai.AsyncOpenAI
) -> None:
    with pytest.raises(openai.BadRequestError) as several:
        await client.completions.create(model=MODEL, prompt=["a", "b"])
    assert (several.value.param, several.value.code) == ("prompt", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError) as echoed:
        await client.completions.create(model=MODEL, prompt="a", echo=True)
    assert echoed.value.param == "echo"
    with pytest.raises(openai.BadRequestError) as overlong:
        await client.completions.create(model=MODEL, prompt="Hi" * 400)
    assert (overlong.value.param, overlong.value.code) == ("prompt", "context_length_exceeded")
    assert await house.nothing_happened()
