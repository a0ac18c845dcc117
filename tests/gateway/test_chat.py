"""Chat completions from socket to ledger: what the client is told is what is billed."""

import asyncio
import json
from typing import Any

from billing.pricing.book import PriceBook
from billing.pricing.rating import rate
from billing.usage import TokenUsage
from engine.api import TokenChunk, TokenLogprobs
from gateway.telemetry import PARAMS_MAX, Telemetry
from tests.gateway.conftest import CREDIT, ROW, House
from tests.gateway.doubles import END, MODEL, Play, says


async def events(answer: Any) -> list[Any]:
    """Every `data:` of a stream, comments left out, `[DONE]` as text."""
    text = (await answer.read()).decode()
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def charged(usage: dict[str, Any]) -> int:
    buckets = TokenUsage(
        cache_hit=usage["prompt_cache_hit_tokens"],
        cache_owed=0,
        cache_write=0,
        cache_miss=usage["prompt_cache_miss_tokens"],
        output=usage["completion_tokens"],
    )
    return rate(PriceBook((ROW,)), MODEL, "USD", buckets, ROW.effective_from).amount


async def test_a_whole_answer_tells_exactly_what_is_billed(house: House) -> None:
    house.engine.play = Play(hit_tokens=4)
    async with house.chat() as answer:
        body = await answer.json()
    assert answer.status == 200
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hello"}
    assert body["choices"][0]["finish_reason"] == "stop"
    usage = body["usage"]
    assert usage["prompt_tokens"] == len("user:Hi\n")
    assert usage["completion_tokens"] == 6  # the stop token is generated and billed
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_cache_hit_tokens"] == 4
    (row,) = await house.settled()
    assert (row.cache_hit, row.cache_miss, row.output) == (4, 4, 6)
    assert row.status == "completed"
    assert row.charge == charged(usage)
    assert await house.balance() == CREDIT - row.charge
    assert str(row.request_id) == answer.headers["x-request-id"]
    assert body["id"].endswith(str(row.request_id))


async def test_a_stream_opens_with_the_role_and_ends_with_usage_and_done(house: House) -> None:
    """BerriAI/litellm#5118, BerriAI/litellm#15740: with `include_usage` too, one row a request."""
    async with house.chat(stream=True, stream_options={"include_usage": True}) as answer:
        chunks = await events(answer)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert (
        "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks[:-2] if c["choices"]) == "Hello"
    )
    reasons = [c["choices"][0]["finish_reason"] for c in chunks[:-2]]
    assert [reason for reason in reasons if reason] == ["stop"]
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["choices"] == []
    assert chunks[-3]["usage"] is None
    (row,) = await house.settled()
    assert str(row.request_id) == answer.headers["x-request-id"]
    assert row.charge == charged(chunks[-2]["usage"])


async def test_the_charge_is_durable_and_the_hold_gone_before_the_last_chunk_arrives(house: House) -> None:
    async with house.chat(stream=True) as answer:
        async for line in answer.content:
            if b'"finish_reason":"stop"' in line:
                assert len(await house.rows()) == 1
                assert not (await house.held()).holds


async def test_while_a_request_runs_its_worst_case_is_held(house: House) -> None:
    gate = asyncio.Event()
    house.engine.play = Play([says("a"), gate, TokenChunk((END,), "stop")], hit_tokens=4)
    async with house.chat(stream=True, max_tokens=50) as answer:
        await answer.content.readline()
        held = (await house.held()).held
        gate.set()
        await answer.read()
    rates = ROW.standard
    assert held == len("user:Hi\n") * rates.miss + 50 * rates.output
    assert (await house.settled())[0].charge < held


async def test_a_stop_string_ends_the_answer_and_the_generation(house: House) -> None:
    house.engine.play = Play([says("one tw"), says("o three"), asyncio.Event()])
    async with house.chat(stop=["two"]) as answer:
        body = await answer.json()
    assert body["choices"][0]["message"]["content"] == "one "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == len("one two three")  # received when the stop was seen
    (row,) = await house.settled()
    assert row.output == len("one two three")
    await asyncio.wait_for(house.engine.generations[0].cancelled.wait(), 5)


async def test_more_tokens_than_asked_for_are_neither_shown_nor_billed(house: House) -> None:
    house.engine.play = Play([says("abcdef"), says("ghi", "length")])
    async with house.chat(max_tokens=4) as answer:
        body = await answer.json()
    assert body["choices"][0]["message"]["content"] == "abcd"
    assert body["choices"][0]["finish_reason"] == "length"
    assert (await house.settled())[0].output == 4


async def test_a_silent_stream_gets_headers_and_heartbeats(house: House) -> None:
    prefill = asyncio.Event()
    house.engine.play = Play(prefill=prefill)
    async with house.chat(stream=True) as answer:
        assert answer.status == 200
        assert await answer.content.readline() == b": ping\n"
        prefill.set()
        rest = (await answer.read()).decode()
    assert rest.endswith("data: [DONE]\n\n")
    assert "\nid:" not in rest
    assert (await house.settled())[0].status == "completed"


async def test_the_engine_is_told_who_asks_what_and_under_which_price(house: House) -> None:
    body = {"user_id": "u1", "temperature": 0, "seed": 7, "max_completion_tokens": 9, "store": True}
    async with house.chat(**body) as answer:
        await answer.read()
    request = house.engine.generations[0].request
    assert (request.tenant, request.scope, request.retention_class) == (house.tenant_id, "u1", "chat")
    assert (request.sampling.max_tokens, request.weight) == (9, 1.0)
    assert (request.sampling.temperature, request.sampling.seed) == (0, 7)
    assert request.sampling.stop_token_ids == (END,)
    assert request.request_id == answer.headers["x-request-id"]
    memo = json.loads(request.memo)
    assert memo == {
        "tenant": house.tenant_id,
        "key": house.key_id,
        "model": MODEL,
        "class": "chat",
        "price_row": ROW.id,
    }
    assert answer.headers["x-ignored-params"] == "store"


async def test_the_engine_is_told_the_form_of_the_answer(house: House) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    for response_format in (wanted, {"type": "text"}):
        async with house.chat(response_format=response_format) as answer:
            assert answer.status == 200
    formed, free = (generation.request.sampling.constraint for generation in house.engine.generations)
    assert formed is not None
    assert '"required":["a"]' in formed.text
    assert free is None


async def test_many_requests_at_once_are_billed_once_each(house: House) -> None:
    async def one() -> int:
        async with house.chat() as answer:
            return charged((await answer.json())["usage"])

    charges = await asyncio.gather(*(one() for _ in range(40)))
    rows = await house.settled(40)
    assert len({row.request_id for row in rows}) == 40
    assert await house.balance() == CREDIT - sum(charges)
    assert await house.parts.ledger.check_integrity() == []
    held = await house.held()
    assert held.held == 0
    assert held.balance == CREDIT - sum(charges)
    assert await house.admission.check_integrity(house.tenant_id) == []


async def test_log_probabilities_are_told_of_each_token_but_the_end(house: House) -> None:
    told = [TokenLogprobs(ord(c), -0.5, ((ord(c), -0.5), (ord("x"), -2.0))) for c in "Hi"]
    end = TokenLogprobs(END, -0.1, ())
    house.engine.play = Play(
        [TokenChunk((ord("H"),), None, (told[0],)), TokenChunk((ord("i"), END), "stop", (told[1], end))]
    )
    async with house.chat(logprobs=True, top_logprobs=2) as answer:
        choice = (await answer.json())["choices"][0]
    assert house.engine.generations[0].request.sampling.logprobs == 2
    assert [token["token"] for token in choice["logprobs"]["content"]] == ["H", "i"]
    assert [likely["token"] for likely in choice["logprobs"]["content"][0]["top_logprobs"]] == ["H", "x"]
    async with house.chat(logprobs=True, stream=True) as answer:
        chunks = await events(answer)
    listed = [chunk["choices"][0]["logprobs"] or {"content": []} for chunk in chunks[:-1]]
    assert [token["token"] for one in listed for token in one["content"]] == ["H", "i"]


async def test_log_probabilities_of_the_reasoning_stand_apart(house: House) -> None:
    thought, said = ord("\ue000"), ord("H")  # the first is a token of the double's that thinks
    told = tuple(TokenLogprobs(token_id, -0.5) for token_id in (thought, said))
    house.engine.play = Play([TokenChunk((thought, said), None, told), TokenChunk((END,), "stop")])
    async with house.chat(logprobs=True) as answer:
        logprobs = (await answer.json())["choices"][0]["logprobs"]
    assert [token["token"] for token in logprobs["reasoning_content"]] == ["\ue000"]
    assert [token["token"] for token in logprobs["content"]] == ["H"]


def test_names_that_clients_make_up_are_counted_apart_up_to_a_bound() -> None:
    telemetry = Telemetry()
    for number in range(PARAMS_MAX + 50):
        telemetry.ignored(f"made_up_{number}")
    counted = [line for line in telemetry.render().decode().splitlines() if "ignored_params_total{" in line]
    assert len(counted) == PARAMS_MAX + 1
    assert 'kvitto_ignored_params_total{param="other"} 50.0' in counted


async def test_however_many_parameters_have_no_effect_the_header_can_be_read(house: House) -> None:
    async with house.chat(**{f"made_up_{n}": n for n in range(500)}, **{"no name": 1}) as answer:
        named = answer.headers["x-ignored-params"].split(", ")
    assert (answer.status, len(named)) == (200, 32)
    assert "no name" not in named
