"""Responses from socket to ledger, by the official `openai` package where a client's eyes count."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from engine.api import EngineFailed, TokenChunk, TokenLogprobs
from gateway.refusal import OriginalFailed
from gateway.routes.responses import SURFACE
from tests.gateway.conftest import CREDIT, ROW, House
from tests.gateway.doubles import END, MODEL, Play, says

OFFICIAL: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class City(BaseModel):
    name: str


@pytest.fixture
async def client(house: House) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=house.key, max_retries=0) as client:
        yield client


def posted(house: House, path: str = "/v1/responses", **body: Any) -> Any:
    """A request in flight: use as `async with`."""
    document = {"model": MODEL, "input": "Hi", **body}
    return house.session.post(f"{house.url}{path}", json=document, headers=house.headers)


def framed(text: str) -> list[dict[str, Any]]:
    """Each event of a stream, which is named after its type; read strictly as the package types it."""
    events = []
    for frame in text.split("\n\n"):
        lines = [line for line in frame.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        name, content = lines
        event = json.loads(content.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        OFFICIAL.validate_json(content.removeprefix("data: "), strict=True)
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


async def test_a_whole_answer_tells_exactly_what_is_billed(house: House, client: openai.AsyncOpenAI) -> None:
    house.engine.play = Play(hit_tokens=4)
    raw = await client.responses.with_raw_response.create(model=MODEL, input="Hi")
    response = raw.parse()
    assert (response.status, response.output_text) == ("completed", "Hello")
    assert response.usage is not None
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (8, 6, 14)
    assert usage.input_tokens_details.cached_tokens == 4
    (row,) = await house.settled()
    assert (row.cache_hit, row.cache_miss, row.output) == (4, 4, 6)
    assert row.charge == 4 * ROW.standard.hit + 4 * ROW.standard.miss + 6 * ROW.standard.output
    assert await house.balance() == CREDIT - row.charge
    assert response.id == f"resp_{row.request_id}"
    assert raw.headers["x-request-id"] == str(row.request_id)


async def test_a_stream_is_read_to_its_end_with_the_usage_that_is_billed(
    house: House, client: openai.AsyncOpenAI
) -> None:
    house.engine.play = Play(hit_tokens=4)
    async with client.responses.stream(model=MODEL, input="Hi", instructions="be nice") as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert (deltas, final.output_text) == (["Hel", "lo"], "Hello")
    assert final.instructions == "be nice"
    (row,) = await house.settled()
    assert final.usage is not None
    assert final.usage.input_tokens == row.cache_hit + row.cache_miss
    assert final.usage.input_tokens_details.cached_tokens == row.cache_hit == 4
    assert final.usage.output_tokens == row.output


async def test_a_streams_events_are_openais_and_nothing_follows_the_last(house: House) -> None:
    async with posted(house, stream=True) as answer:
        text = (await answer.read()).decode()
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = framed(text)
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert "[DONE]" not in text
    assert "\nid:" not in text


async def test_log_probabilities_are_told_to_who_includes_them(
    house: House, client: openai.AsyncOpenAI
) -> None:
    told = [TokenLogprobs(ord(c), -0.5, ((ord(c), -0.5), (ord("x"), -2.0))) for c in "Hi"]
    house.engine.play = Play(
        [TokenChunk((ord(c),), None, (one,)) for c, one in zip("Hi", told, strict=True)]
        + [TokenChunk((END,), "stop", (TokenLogprobs(END, -0.1, ()),))]
    )
    asked: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = await client.responses.create(model=MODEL, input="Hi", **asked)
    assert house.engine.generations[0].request.sampling.logprobs == 2
    (message,) = response.output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert [token.token for token in part.logprobs or ()] == ["H", "i"]
    assert [likely.token for likely in (part.logprobs or [])[0].top_logprobs] == ["H", "x"]
    async with posted(house, stream=True, **asked) as answer:
        events = framed(await answer.text())
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [token["token"] for event in deltas for token in event["logprobs"]] == ["H", "i"]
    assert response.top_logprobs == 2


async def test_a_silent_stream_is_kept_open_and_read_all_the_same(
    house: House, client: openai.AsyncOpenAI
) -> None:
    prefill = asyncio.Event()
    house.engine.play = Play(prefill=prefill)
    asyncio.get_running_loop().call_later(0.4, prefill.set)
    stream = await client.responses.create(model=MODEL, input="Hi", stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "response.completed"


async def test_the_text_is_parsed_where_it_was_asked_for(house: House, client: openai.AsyncOpenAI) -> None:
    house.engine.play = Play([says('{"name": '), says('"Lund"}'), TokenChunk((END,), "stop")])
    parsed = await client.responses.parse(model=MODEL, input="Hi", text_format=City)
    assert parsed.output_parsed == City(name="Lund")


async def test_an_answer_that_reaches_its_limit_is_incomplete(
    house: House, client: openai.AsyncOpenAI
) -> None:
    house.engine.play = Play([says("abcdef"), says("ghi", "length")])
    response = await client.responses.create(model=MODEL, input="Hi", max_output_tokens=4)
    assert (response.status, response.output_text) == ("incomplete", "abcd")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    async with posted(house, stream=True, max_output_tokens=4) as answer:
        events = framed((await answer.read()).decode())
    assert events[-1]["type"] == "response.incomplete"
    assert {row.output for row in await house.settled(2)} == {4}


async def test_a_stream_that_breaks_raises_and_ends_as_failed(
    house: House, client: openai.AsyncOpenAI
) -> None:
    """openai/codex#41340: a stream always ends with the response's last word."""
    house.engine.play = Play([says("Hel"), EngineFailed("decode-0", "killed")])
    stream = await client.responses.create(model=MODEL, input="Hi", stream=True)
    with pytest.raises(openai.APIError, match="worker failed"):
        async for _ in stream:
            pass
    async with posted(house, stream=True) as answer:
        *_, error, failed = framed((await answer.read()).decode())
    assert (error["type"], error["code"]) == ("error", "service_unavailable")
    assert failed["type"] == "response.failed"
    assert failed["response"]["id"] == f"resp_{answer.headers['x-request-id']}"
    assert failed["response"]["usage"] is None
    assert {row.charge for row in await house.settled(2)} == {0}


async def test_a_stream_that_breaks_before_its_first_event_has_the_same_end(house: House) -> None:
    prefill = asyncio.Event()
    house.engine.play = Play([EngineFailed("decode-0", "killed")], prefill=prefill)
    async with posted(house, stream=True) as answer:
        assert await answer.content.readline() == b": ping\n"
        prefill.set()
        events = framed((await answer.read()).decode())
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "error",
        "response.failed",
    ]


def test_a_stream_without_a_writer_has_the_same_end() -> None:
    events = framed(SURFACE.broken(OriginalFailed()).decode())
    assert events[-1]["type"] == "response.failed"


async def test_leaving_stops_the_generation_and_pays_for_what_was_received(
    house: House, client: openai.AsyncOpenAI
) -> None:
    house.engine.play = Play([says("Hel"), asyncio.Event()])
    stream = await client.responses.create(model=MODEL, input="Hi", stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    (row,) = await house.settled()
    assert (row.status, row.output) == ("aborted", 3)
    assert house.engine.running == 0


async def test_it_knows_what_kind_of_refusal_it_got(house: House, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="gpt-9", input="Hi")
    with pytest.raises(openai.BadRequestError) as unkept:
        await client.responses.create(model=MODEL, input="Hi", previous_response_id="resp_1")
    assert (unkept.value.param, unkept.value.code) == ("previous_response_id", "unsupported_parameter")
    with pytest.raises(openai.UnprocessableEntityError) as invalid:
        await client.responses.create(model=MODEL, input="Hi", max_output_tokens=0)
    assert invalid.value.param == "max_output_tokens"
    with pytest.raises(openai.BadRequestError) as overlong:
        await client.responses.create(model=MODEL, input="Hi" * 400)
    assert (overlong.value.param, overlong.value.code) == ("input", "context_length_exceeded")
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key=house.key[:-1]).responses.create(model=MODEL, input="Hi")
    await house.spend(leaving=0)
    with pytest.raises(openai.APIStatusError) as broke:
        await client.responses.create(model=MODEL, input="Hi")
    assert (broke.value.status_code, broke.value.code) == (402, "insufficient_balance")


async def test_what_was_ignored_is_said_by_its_path(house: House) -> None:
    async with posted(house, "/responses", text={"verbosity": "low"}, store=True) as answer:
        await answer.read()
    assert answer.status == 200
    assert answer.headers["x-ignored-params"] == "store, text.verbosity"


async def test_tokens_are_counted_without_a_charge(house: House, client: openai.AsyncOpenAI) -> None:
    counted = await client.responses.input_tokens.count(model=MODEL, input="Hi")
    assert counted.input_tokens == len("user:Hi\n")
    assert counted.object == "response.input_tokens"
    assert house.engine.generations == []
    assert await house.nothing_happened()
    with pytest.raises(openai.NotFoundError):
        await client.responses.input_tokens.count(model="gpt-9", input="Hi")
