"""The official `openai` package as the client: it must see what we mean, also where we fail."""

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest

from engine.api import EngineFailed, EngineUnavailable
from tests.gateway.conftest import CREDIT, House, until
from tests.gateway.doubles import MODEL, Play, says

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def client(house: House) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=house.key, max_retries=0) as client:
        yield client


async def test_it_reads_a_whole_answer_with_its_usage(house: House, client: openai.AsyncOpenAI) -> None:
    house.engine.play = Play(hit_tokens=4)
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


async def test_it_reads_a_stream_with_heartbeats_in_it(house: House, client: openai.AsyncOpenAI) -> None:
    prefill, gate = asyncio.Event(), asyncio.Event()
    house.engine.play = Play([says("Hel"), gate, says("lo", "length")], prefill=prefill)
    asyncio.get_running_loop().call_later(0.4, prefill.set)
    asyncio.get_running_loop().call_later(0.6, gate.set)
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "Hello"
    assert [delta.role for delta in deltas if delta.role] == ["assistant"]
    assert chunks[-1].usage is not None
    (row,) = await house.settled()
    assert chunks[-1].usage.completion_tokens == row.output == 5


async def test_it_raises_when_a_stream_breaks(house: House, client: openai.AsyncOpenAI) -> None:
    house.engine.play = Play([says("Hel"), EngineFailed("decode-0", "killed")])
    stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="worker failed"):
        async for _ in stream:
            pass


async def test_it_knows_what_kind_of_refusal_it_got(house: House, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    with pytest.raises(openai.UnprocessableEntityError) as invalid:
        await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=0)
    assert invalid.value.param == "max_tokens"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key=house.key[:-1]).models.list()
    await house.spend(leaving=0)
    with pytest.raises(openai.APIStatusError) as broke:
        await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert (broke.value.status_code, broke.value.code) == (402, "insufficient_balance")


async def test_its_retry_of_a_failed_turn_is_charged_once_and_the_failed_try_holds_nothing(
    house: House, client: openai.AsyncOpenAI
) -> None:
    """BasedHardware/omi#15287: the package asks again by itself after a 503."""
    house.engine.play = Play([EngineUnavailable("decode-0 is dead", retry_after_s=0)])

    async def failed() -> bool:
        return len(await house.rows()) == 1

    asking = asyncio.create_task(
        client.with_options(max_retries=2).chat.completions.create(model=MODEL, messages=MESSAGES)
    )
    await until(failed)
    house.engine.play = Play()
    answer = await asking
    assert answer.choices[0].message.content == "Hello"
    rows = await house.settled(2)
    assert [row.status for row in rows if row.charge] == ["completed"]
    assert {row.status for row in rows if not row.charge} == {"failed"}
    assert await house.balance() == CREDIT - sum(row.charge for row in rows)
    assert (await house.held()).held == 0


async def test_closing_its_stream_stops_the_generation(house: House, client: openai.AsyncOpenAI) -> None:
    house.engine.play = Play([says("Hel"), asyncio.Event()])
    stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    (row,) = await house.settled()
    assert (row.status, row.output) == ("aborted", 3)
    assert house.engine.running == 0
