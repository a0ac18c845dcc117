"""Whose the first token is: prefill's where nothing hangs on state, or a worker's that does both."""

import dataclasses
from typing import Any

import pytest
from aiohttp import web

from engine.api import (
    Deadlines,
    EngineFailed,
    EngineUnavailable,
    GenerateRequest,
    Generation,
    TokenChunk,
    WorkerAnswerInvalid,
)
from engine.proof.coverage import Attempt

FIRST: dict[str, Any] = {"first_token": True}
BRIEF = Deadlines(first_token_s=0.2, token_gap_s=0.2, health_interval_s=0.02, retry_after_s=7)


def asking(request: GenerateRequest, **sampling: Any) -> GenerateRequest:
    return dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, **sampling))


async def drain(generation: Generation) -> list[TokenChunk]:
    return [chunk async for chunk in generation]


async def test_the_first_token_is_prefills_and_decode_goes_on_behind_it(
    open_engine, prefiller, decoder, generate_request
) -> None:
    async with open_engine(prefiller, decoder, **FIRST) as engine:
        generation = engine.submit(asking(generate_request, temperature=0.7))
        chunks = await drain(generation)
        attestation, _ = await generation.prefilled()
    assert chunks == [TokenChunk((11,)), TokenChunk((12,)), TokenChunk((13,), "stop")]
    (prefill,), (decode,) = prefiller.bodies, decoder.bodies
    assert prefill["sampling_params"] == {**decode["sampling_params"], "max_tokens": 1}
    assert prefill["sampling_params"]["temperature"] == 0.7, "it is drawn as the client asked"
    assert prefill["kv_transfer_params"]["first_token"] is True
    assert decode["token_ids"] == [*generate_request.prompt_ids, 11]
    assert decode["sampling_params"]["max_tokens"] == 7
    assert decode["kv_transfer_params"]["output_from"] == 1
    assert attestation.output_to == 1
    assert generation.attempts == (Attempt(0, "prefill", "p0", 0, 1), Attempt(1, "decode", "d0", 1, 3))


@pytest.mark.parametrize(
    "sampling",
    [{"seed": 5}, {"presence_penalty": 1}, {"frequency_penalty": 1}, {"repetition_penalty": 1.1}],
)
async def test_decode_draws_the_first_token_where_it_depends_on_state(
    open_engine, prefiller, decoder, generate_request, sampling
) -> None:
    async with open_engine(prefiller, decoder, **FIRST) as engine:
        generation = engine.submit(asking(generate_request, **sampling))
        chunks = await drain(generation)
    assert [token for chunk in chunks for token in chunk.token_ids] == [11, 12, 13]
    assert prefiller.bodies[0]["sampling_params"] == {
        "max_tokens": 1,
        "temperature": 0.0,
        "detokenize": False,
    }
    assert generation.attempts == (Attempt(0, "prefill", "p0", 0, 0), Attempt(1, "decode", "d0", 0, 3))


@pytest.mark.parametrize(
    ("sampling", "finish"),
    [({"stop_token_ids": (11,)}, "stop"), ({"max_tokens": 1}, "length")],
    ids=["an end token", "one token asked for"],
)
async def test_an_answer_of_one_token_needs_no_decode(
    open_engine, prefiller, decoder, generate_request, sampling, finish
) -> None:
    async with open_engine(prefiller, decoder, **FIRST) as engine:
        generation = engine.submit(asking(generate_request, **sampling))
        assert await drain(generation) == [TokenChunk((11,), finish)]
    assert generation.attempts == (Attempt(0, "prefill", "p0", 0, 1),)
    assert not decoder.bodies


async def test_a_token_that_prefill_does_not_attest_is_not_passed_on(
    open_engine, prefiller, decoder, generate_request
) -> None:
    async def unattested(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        text = prefiller.attestation(body, output_to=0).sign(prefiller.key)
        return web.json_response(prefiller.prefill_answer(text, 11))

    prefiller.on_prefill = unattested
    async with open_engine(prefiller, decoder, **FIRST) as engine:
        generation = engine.submit(generate_request)
        with pytest.raises(WorkerAnswerInvalid, match="output_to"):
            await drain(generation)
    assert generation.attempts == ()


async def test_a_decode_that_is_refused_after_the_first_token_ends_in_engine_failed(
    open_engine, prefiller, decoder, make_worker, generate_request
) -> None:
    async def refused(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too long"}}, status=400)

    decoder.on_decode = refused
    async with open_engine(prefiller, decoder, **FIRST) as engine:
        generation = engine.submit(generate_request)
        with pytest.raises(EngineFailed, match="too long"):
            await drain(generation)
    assert generation.attempts == (Attempt(0, "prefill", "p0", 0, 1),), "its token was passed on"


async def test_a_begun_answer_waits_for_a_decode_worker_that_comes_back(
    open_engine, prefiller, decoder, generate_request
) -> None:
    async with open_engine(prefiller, decoder, **FIRST) as engine:
        await decoder.stop()
        reading = aiter(engine.submit(generate_request))
        assert await anext(reading) == TokenChunk((11,))
        await decoder.start()
        assert [chunk async for chunk in reading][-1].finish == "stop"


async def test_a_begun_answer_waits_no_longer_than_for_a_token(
    open_engine, prefiller, decoder, generate_request
) -> None:
    async with open_engine(prefiller, decoder, deadlines=BRIEF, **FIRST) as engine:
        await decoder.stop()
        generation = engine.submit(generate_request)
        with pytest.raises(EngineFailed):
            await drain(generation)
    assert generation.attempts == (Attempt(0, "prefill", "p0", 0, 1),)


async def test_one_worker_does_both_and_its_prompt_is_attested_before_its_first_token(
    open_engine, make_worker, generate_request
) -> None:
    both = make_worker("w0", "both")
    async with open_engine(both, **FIRST) as engine:
        generation = engine.submit(generate_request)
        reading = aiter(generation)
        assert await anext(reading) == TokenChunk((11,))
        attestation, text = await generation.prefilled()
        assert [chunk async for chunk in reading] == [TokenChunk((12, 13), "stop")]
    assert (attestation.stage, attestation.hit_tokens, text) == ("both", 64, both.lines[0].attestation)
    (body,) = both.bodies
    assert (body["stream"], body["sampling_params"]["max_tokens"]) == (True, 8)
    assert body["kv_transfer_params"]["first_token"] is False, "its decode attests all of its output"
    assert generation.attempts == (Attempt(0, "both", "w0", 0, 3),)


async def test_a_stream_without_its_attestation_is_tried_elsewhere_and_nothing_of_it_passed_on(
    open_engine, make_worker, generate_request
) -> None:
    mute, spare = make_worker("w0", "both"), make_worker("w1", "both")
    mute.attests_streams = False
    mute.tokens = (66, 67, 68)
    async with open_engine(mute, spare, **FIRST) as engine:
        generation = engine.submit(generate_request)
        chunks = await drain(generation)
        assert (await generation.prefilled())[0].worker == "w1"
    assert [token for chunk in chunks for token in chunk.token_ids] == [11, 12, 13]
    assert generation.attempts == (Attempt(1, "both", "w1", 0, 3),)


async def test_a_stream_with_anothers_attestation_is_refused(
    open_engine, make_worker, generate_request
) -> None:
    both = make_worker("w0", "both")

    async def lied(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        both.keep(both.attestation(body, memo="another key's"))
        both.attests_streams = False
        return await both.answered(request, body)

    both.on_decode = lied
    async with open_engine(both, **FIRST) as engine:
        generation = engine.submit(generate_request)
        with pytest.raises(WorkerAnswerInvalid, match="memo"):
            await drain(generation)
        with pytest.raises(WorkerAnswerInvalid):
            await generation.prefilled()
    assert generation.attempts == ()


async def test_a_worker_of_both_that_dies_before_its_first_token_is_replaced(
    open_engine, make_worker, generate_request
) -> None:
    dying, spare = make_worker("w0", "both"), make_worker("w1", "both")
    dying.on_decode = dying.streaming_then([], die=True)
    async with open_engine(dying, spare, **FIRST) as engine:
        generation = engine.submit(generate_request)
        await drain(generation)
    assert generation.attempts == (Attempt(1, "both", "w1", 0, 3),)
    assert spare.bodies[0]["kv_transfer_params"]["stage"] == "both"


async def test_a_worker_of_both_that_dies_later_is_followed_by_a_decode(
    open_engine, make_worker, generate_request
) -> None:
    dying, spare = make_worker("w0", "both"), make_worker("w1", "both")

    async def died(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        dying.keep(dying.attestation(body))
        return await dying.streaming_then([dying.chunk([11, 12])], die=True)(request, body)

    dying.on_decode = died
    async with open_engine(dying, spare, **FIRST) as engine:
        generation = engine.submit(generate_request)
        assert await drain(generation) == [TokenChunk((11, 12)), TokenChunk((13,), "stop")]
    assert generation.attempts == (Attempt(0, "both", "w0", 0, 2), Attempt(1, "decode", "w1", 2, 3))


async def test_no_worker_at_all_is_said_before_anything_was_sent(
    open_engine, make_worker, generate_request
) -> None:
    both = make_worker("w0", "both")
    both.healthy = False
    async with open_engine(both, **FIRST) as engine:
        generation = engine.submit(generate_request)
        with pytest.raises(EngineUnavailable):
            await generation.prefilled()
    assert generation.attempts == ()
