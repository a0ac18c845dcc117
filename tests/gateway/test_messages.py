"""Anthropic's Messages from socket to ledger, with the official `anthropic` package as the client."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

from billing.tenancy.limits import Limit
from billing.tenancy.rules.rule import Owner
from engine.api import EngineFailed, TokenChunk
from tests.gateway.conftest import CREDIT, EPOCH, ROW, House
from tests.gateway.doubles import CONTEXT_TOKENS, END, MODEL, Play, says

ASKED: list[MessageParam] = [{"role": "user", "content": "Hi"}]
PROMPT = len("user:Hi\n")
TOOL: ToolParam = {"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALLING = Play([says("\ue000"), says("I look."), says("\ue001\ue002"), says("\ue003", "stop")], hit_tokens=4)


@pytest.fixture
async def client(house: House) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=house.url, auth_token=house.key, max_retries=0) as client:
        yield client


def ask(house: House, path: str = "/v1/messages", **body: Any) -> Any:
    """A request in flight, without the package: use as `async with`."""
    document = {"model": MODEL, "max_tokens": 50, "messages": ASKED, **body}
    return house.session.post(house.url + path, json=document, headers=house.headers)


async def test_a_whole_answer_tells_exactly_what_is_billed(
    house: House, client: anthropic.AsyncAnthropic
) -> None:
    house.engine.play = Play(hit_tokens=4)
    answer = await client.messages.create(model=MODEL, max_tokens=50, messages=ASKED)
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "Hello"}]
    assert (answer.stop_reason, answer.stop_sequence, answer.model) == ("end_turn", None, MODEL)
    (row,) = await house.settled()
    usage = answer.usage
    assert (
        (usage.cache_read_input_tokens, usage.input_tokens)
        == (row.cache_hit, row.cache_miss)
        == (4, PROMPT - 4)
    )
    assert (usage.cache_creation_input_tokens, usage.output_tokens) == (0, row.output) == (0, 6)
    rates = ROW.standard
    assert row.charge == 4 * rates.hit + (PROMPT - 4) * rates.miss + 6 * rates.output
    assert await house.balance() == CREDIT - row.charge
    assert answer.id == f"msg_{row.request_id}"


async def test_a_stream_tells_exactly_what_is_billed(house: House, client: anthropic.AsyncAnthropic) -> None:
    house.engine.play = Play(hit_tokens=4)
    async with client.messages.stream(model=MODEL, max_tokens=50, messages=ASKED) as stream:
        said = [text async for text in stream.text_stream]
        answer = await stream.get_final_message()
    assert (said, answer.stop_reason) == (["Hel", "lo"], "end_turn")
    (row,) = await house.settled()
    usage = answer.usage
    assert (usage.cache_read_input_tokens, usage.input_tokens, usage.output_tokens) == (4, PROMPT - 4, 6)
    assert (row.cache_hit, row.cache_miss, row.output, row.status) == (4, PROMPT - 4, 6, "completed")


async def test_a_stream_is_named_events_with_the_prompts_usage_first_and_the_bill_once(house: House) -> None:
    house.engine.play = Play(hit_tokens=4)
    async with ask(house, "/anthropic/v1/messages?beta=true", stream=True) as answer:
        text = (await answer.read()).decode()
    frames = [frame.split("\n") for frame in text.removesuffix("\n\n").split("\n\n")]
    assert all(len(frame) == 2 for frame in frames)
    chunks = [json.loads(line.removeprefix("data: ")) for _, line in frames]
    assert [name for name, _ in frames] == [f"event: {chunk['type']}" for chunk in chunks]
    chunks = [chunk for chunk in chunks if chunk["type"] != "ping"]
    usages = [chunk["usage"] for chunk in chunks if "usage" in chunk]
    started = chunks[0]["message"]["usage"]
    assert (started["input_tokens"], started["cache_read_input_tokens"]) == (PROMPT - 4, 4)
    assert usages == [{**started, "output_tokens": 6}]
    assert chunks[-1] == {"type": "message_stop"}
    assert "\nid:" not in text


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_and_calls_are_blocks_of_their_own(
    house: House, client: anthropic.AsyncAnthropic, stream: bool
) -> None:
    house.engine.play = CALLING
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 50, "messages": ASKED, "tools": [TOOL]}
    if stream:
        async with client.messages.stream(**asked) as streamed:
            answer: Any = await streamed.get_final_message()
    else:
        answer = await client.messages.create(**asked)
    (row,) = await house.settled()
    assert [block.to_dict() for block in answer.content] == [
        {"type": "thinking", "thinking": "hm", "signature": f"msg_{row.request_id}"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": f"toolu_{row.request_id}_0", "name": "f", "input": {"a": 1}},
    ]
    assert answer.stop_reason == "tool_use"
    assert row.output == len("\ue000I look.\ue001\ue002\ue003")


async def test_the_answer_to_a_call_goes_back_with_its_thinking(
    house: House, client: anthropic.AsyncAnthropic
) -> None:
    house.engine.play = CALLING
    first = await client.messages.create(model=MODEL, max_tokens=50, messages=ASKED, tools=[TOOL])
    (call,) = [block for block in first.content if block.type == "tool_use"]
    turns: list[MessageParam] = [
        *ASKED,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "2"}]},
    ]
    house.engine.play = Play()
    second = await client.messages.create(model=MODEL, max_tokens=50, messages=turns, tools=[TOOL])
    assert second.stop_reason == "end_turn"
    prompt = "".join(map(chr, house.engine.generations[-1].request.prompt_ids))
    assert prompt == "user:Hi\nassistant:I look.\ntool:2\n"
    assert [generation.request.retention_class for generation in house.engine.generations] == ["agent"] * 2


async def test_an_answer_that_is_too_long_says_so(house: House, client: anthropic.AsyncAnthropic) -> None:
    answer = await client.messages.create(model=MODEL, max_tokens=3, messages=ASKED)
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 3)


async def test_a_queued_stream_gets_pings_that_the_client_reads_over(
    house: House, client: anthropic.AsyncAnthropic
) -> None:
    prefill, gate = asyncio.Event(), asyncio.Event()
    house.engine.play = Play([says("Hel"), gate, says("lo", "length")], prefill=prefill)
    async with ask(house, stream=True) as raw:
        assert await raw.content.readuntil(b"\n\n") == b'event: ping\ndata: {"type":"ping"}\n\n'
    asyncio.get_running_loop().call_later(0.4, prefill.set)
    asyncio.get_running_loop().call_later(0.6, gate.set)
    async with client.messages.stream(model=MODEL, max_tokens=50, messages=ASKED) as stream:
        assert [text async for text in stream.text_stream] == ["Hel", "lo"]
    assert {(row.status, row.output) for row in await house.settled(2)} == {("aborted", 0), ("completed", 5)}


async def test_a_broken_stream_raises_and_never_stops_as_if_it_were_whole(
    house: House, client: anthropic.AsyncAnthropic
) -> None:
    house.engine.play = Play([says("Hel"), EngineFailed("decode-0", "killed")])
    with pytest.raises(anthropic.APIStatusError, match="worker failed"):
        async with client.messages.stream(model=MODEL, max_tokens=50, messages=ASKED) as stream:
            await stream.get_final_message()
    async with ask(house, stream=True) as answer:
        text = (await answer.read()).decode()
    name, line = text.removesuffix("\n\n").split("\n\n")[-1].split("\n")
    error = json.loads(line.removeprefix("data: "))
    assert (name, error["type"], error["error"]["type"]) == ("event: error", "error", "overloaded_error")
    assert error["request_id"] == answer.headers["x-request-id"]
    assert "message_stop" not in text
    assert [row.charge for row in await house.settled(2)] == [0, 0]


async def test_leaving_a_stream_stops_the_generation(house: House, client: anthropic.AsyncAnthropic) -> None:
    house.engine.play = Play([says("Hel"), asyncio.Event()])
    async with client.messages.stream(model=MODEL, max_tokens=50, messages=ASKED) as stream:
        async for _ in stream.text_stream:
            break
    (row,) = await house.settled()
    assert (row.status, row.output) == ("aborted", 3)
    assert house.engine.running == 0


async def test_it_knows_what_kind_of_refusal_it_got(house: House, client: anthropic.AsyncAnthropic) -> None:
    create = client.messages.create
    with pytest.raises(anthropic.NotFoundError):
        await create(model="claude-9", max_tokens=50, messages=ASKED)
    with pytest.raises(anthropic.BadRequestError, match="web_search_20250305"):
        await create(
            model=MODEL,
            max_tokens=50,
            messages=ASKED,
            tools=[{"type": "web_search_20250305", "name": "web_search"}],
        )
    with pytest.raises(anthropic.AuthenticationError):
        await client.with_options(auth_token=house.key[:-1]).messages.create(
            model=MODEL, max_tokens=50, messages=ASKED
        )
    await house.spend(leaving=0)
    with pytest.raises(anthropic.APIStatusError) as broke:
        await create(model=MODEL, max_tokens=50, messages=ASKED)
    assert broke.value.status_code == 402
    assert not house.engine.generations


async def test_a_limit_says_when_to_come_back(house: House, client: anthropic.AsyncAnthropic) -> None:
    limit = Limit("tenant", house.tenant_id, "requests_per_minute", 1)
    await house.desk.organization.rules.set_limit(Owner(house.tenant_id), limit, EPOCH, actor="test")
    await client.messages.create(model=MODEL, max_tokens=50, messages=ASKED)
    with pytest.raises(anthropic.RateLimitError) as reached:
        await client.messages.create(model=MODEL, max_tokens=50, messages=ASKED)
    assert 0 < int(reached.value.response.headers["retry-after"]) <= 60


async def test_a_body_without_max_tokens_is_refused(house: House) -> None:
    async with ask(house, max_tokens=None) as answer:
        assert answer.status == 400
        assert "max_tokens" in (await answer.json())["error"]["message"]


async def test_tokens_are_counted_as_they_are_billed_and_cost_nothing(
    house: House, client: anthropic.AsyncAnthropic
) -> None:
    await house.spend(leaving=0)
    counted = await client.messages.count_tokens(model=MODEL, messages=ASKED, system="s", tools=[TOOL])
    assert counted.input_tokens == len("system:s\nuser:Hi\n")
    assert not house.engine.generations
    assert not await house.rows()
    assert not (await house.held()).holds


async def test_a_prompt_too_long_for_the_model_is_counted_too(
    house: House, client: anthropic.AsyncAnthropic
) -> None:
    """What an agent asks for is whether to shorten its conversation."""
    long: list[MessageParam] = [{"role": "user", "content": "x" * CONTEXT_TOKENS}]
    counted = await client.messages.count_tokens(model=MODEL, messages=long)
    assert counted.input_tokens == len("user:\n") + CONTEXT_TOKENS
    with pytest.raises(anthropic.BadRequestError):
        await client.messages.create(model=MODEL, max_tokens=1, messages=long)


async def test_counting_asks_for_a_known_model_and_a_key(
    house: House, client: anthropic.AsyncAnthropic
) -> None:
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.count_tokens(model="claude-9", messages=ASKED)
    with pytest.raises(anthropic.AuthenticationError):
        await client.with_options(auth_token="kv_live_no").messages.count_tokens(model=MODEL, messages=ASKED)


async def test_the_engine_is_told_what_was_asked(house: House) -> None:
    more = {"temperature": 0, "top_p": 0.5, "top_k": 5, "metadata": {"user_id": "u1"}}
    async with ask(house, thinking={"type": "enabled", "budget_tokens": 1024}, **more) as answer:
        await answer.read()
    request = house.engine.generations[0].request
    assert (request.scope, request.sampling.max_tokens) == ("u1", 50)
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0, 0.5, 5)
    assert answer.headers["x-ignored-params"] == "thinking.budget_tokens"


async def test_a_stop_sequence_ends_the_answer(house: House, client: anthropic.AsyncAnthropic) -> None:
    house.engine.play = Play([says("one tw"), says("o three"), asyncio.Event()])
    answer = await client.messages.create(model=MODEL, max_tokens=50, messages=ASKED, stop_sequences=["two"])
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "one "}]
    assert (await house.settled())[0].output == len("one two three")


async def test_a_stream_that_ends_at_once_is_still_a_message(
    house: House, client: anthropic.AsyncAnthropic
) -> None:
    house.engine.play = Play([TokenChunk((END,), "stop")])
    async with client.messages.stream(model=MODEL, max_tokens=50, messages=ASKED) as stream:
        answer = await stream.get_final_message()
    assert (answer.content, answer.stop_reason, answer.usage.output_tokens) == ([], "end_turn", 1)


async def test_more_than_fits_is_lowered_to_what_does(house: House) -> None:
    """Agents ask for as much as Claude can write, of any model."""
    async with ask(house, max_tokens=32_000) as answer:
        assert answer.status == 200
    prompt = house.engine.generations[0].request.prompt_ids
    assert house.engine.generations[0].request.sampling.max_tokens == CONTEXT_TOKENS - len(prompt)
