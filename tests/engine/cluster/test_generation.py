"""A request's way through the workers, and everything a worker can do to it."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engine.api import (
    Deadlines,
    EngineFailed,
    EngineUnavailable,
    GenerateRequest,
    Generation,
    PromptRefused,
    TokenChunk,
    WorkerAnswerInvalid,
)
from engine.cluster.salt import cache_salt
from engine.proof.coverage import Attempt


async def drain(generation: Generation) -> list[TokenChunk]:
    return [chunk async for chunk in generation]


async def test_a_request_is_prefilled_attested_and_decoded(
    open_engine, prefiller, decoder, generate_request
) -> None:
    async with open_engine(prefiller, decoder) as engine:
        generation = engine.submit(generate_request)
        attestation, text = await generation.prefilled()
        chunks = await drain(generation)
    assert attestation.hit_tokens == 64
    assert json.loads(text)["payload"]["request_id"] == generate_request.request_id
    assert chunks == [TokenChunk((11,)), TokenChunk((12, 13), "stop")], (
        "prefill's own token, 99, is never seen"
    )


async def test_both_workers_get_the_same_tokens_and_salt_and_their_own_stage(
    open_engine, prefiller, decoder, generate_request
) -> None:
    async with open_engine(prefiller, decoder) as engine:
        await drain(engine.submit(generate_request))
    (prefill,), (decode,) = prefiller.bodies, decoder.bodies
    assert prefill["token_ids"] == decode["token_ids"] == list(generate_request.prompt_ids)
    assert prefill["cache_salt"] == decode["cache_salt"] == cache_salt(b"s" * 32, generate_request.tenant, "")
    assert (prefill["stream"], prefill["sampling_params"]["max_tokens"]) == (False, 1)
    assert (decode["stream"], decode["sampling_params"]["max_tokens"]) == (True, 8)
    assert decode["sampling_params"]["stop_token_ids"] == [2]
    assert [body["kv_transfer_params"]["stage"] for body in (prefill, decode)] == ["prefill", "decode"]
    assert generate_request.tenant not in prefill["cache_salt"]


async def test_a_single_worker_of_both_roles_serves_a_request(
    open_engine, make_worker, generate_request
) -> None:
    both = make_worker("w0", "both")
    async with open_engine(both) as engine:
        assert engine.ready
        chunks = await drain(engine.submit(generate_request))
    assert chunks[-1].finish == "stop"
    assert [body["kv_transfer_params"]["stage"] for body in both.bodies] == ["both"]


CHANGES: list[dict[str, Any]] = [
    {"request_id": "another"},
    {"attempt": 1},
    {"stage": "both"},
    {"computed": False},
    {"output_to": 1},
    {"worker": "p1"},
    {"prompt_tokens": 131},
    {"retention_class": "agent"},
    {"memo": "another key's"},
    {"prompt_commitment": "0" * 64},
    {"cached_prefix_commitment": "0" * 64},
    {"hit_tokens": 128, "hit_store_tokens": 128},
]


@pytest.mark.parametrize("changes", CHANGES, ids="+".join)
async def test_an_attestation_about_anything_else_is_refused(
    open_engine, prefiller, decoder, generate_request, changes
) -> None:
    async def lie(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(
            prefiller.prefill_answer(prefiller.attestation(body, **changes).sign(prefiller.key))
        )

    prefiller.on_prefill = lie
    async with open_engine(prefiller, decoder) as engine:
        generation = engine.submit(generate_request)
        with pytest.raises(WorkerAnswerInvalid, match="p0"):
            await generation.prefilled()
        with pytest.raises(WorkerAnswerInvalid):
            await drain(generation)
    assert not decoder.bodies


async def test_an_attestation_signed_by_an_uncertified_key_is_refused(
    open_engine, prefiller, decoder, generate_request
) -> None:
    prefiller.key = Ed25519PrivateKey.generate()
    async with open_engine(prefiller, decoder) as engine:
        with pytest.raises(WorkerAnswerInvalid, match="does not hold"):
            await engine.submit(generate_request).prefilled()


async def test_another_workers_word_does_not_count(open_engine, prefiller, decoder, generate_request) -> None:
    async def forwarded(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        text = prefiller.attestation(body, worker="d0").sign(decoder.key)
        prefiller.certificate = decoder.certificate
        return web.json_response(prefiller.prefill_answer(text))

    prefiller.on_prefill = forwarded
    async with open_engine(prefiller, decoder) as engine:
        with pytest.raises(WorkerAnswerInvalid, match="another worker than"):
            await engine.submit(generate_request).prefilled()


def body_of(body: bytes, status: int = 200) -> Callable[..., Any]:
    async def handler(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=body, status=status)

    return handler


def error_of(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "t", "param": None, "code": 0}}).encode()


def prefill_of(finish: str, token_ids: list[int]) -> bytes:
    return json.dumps({"choices": [{"index": 0, "token_ids": token_ids, "finish_reason": finish}]}).encode()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((b"", 200), EngineUnavailable),
        ((b"<html>", 200), WorkerAnswerInvalid),
        ((b"[]", 200), WorkerAnswerInvalid),
        ((prefill_of("length", [1]), 200), WorkerAnswerInvalid),
        ((prefill_of("length", [1, 2]), 200), WorkerAnswerInvalid),
        ((prefill_of("abort", []), 200), EngineUnavailable),
        ((error_of("engine died"), 500), EngineUnavailable),
        ((error_of("queue full"), 503), EngineUnavailable),
        ((error_of("too long"), 400), PromptRefused),
        ((b"what", 422), PromptRefused),
        ((b"nothing here", 404), WorkerAnswerInvalid),
    ],
)
async def test_each_bad_prefill_answer_has_its_error(
    open_engine, prefiller, decoder, generate_request, answer, expected
) -> None:
    prefiller.on_prefill = body_of(*answer)
    async with open_engine(prefiller, decoder) as engine:
        generation = engine.submit(generate_request)
        with pytest.raises(expected) as caught:
            await generation.prefilled()
        with pytest.raises(expected):
            await drain(generation)
    if isinstance(caught.value, EngineUnavailable):
        assert caught.value.retry_after_s == 7


BROKEN_STREAMS: dict[str, tuple[list[bytes], bool]] = {
    "error event": (
        [b'data: {"error":{"message":"EngineCore","type":"t","param":null,"code":500}}\n\n'],
        True,
    ),
    "abort": ([b'data: {"choices":[{"index":0,"token_ids":[],"finish_reason":"abort"}]}\n\n'], True),
    "abort with tokens": (
        [b'data: {"choices":[{"index":0,"token_ids":[7],"finish_reason":"abort"}]}\n\n'],
        True,
    ),
    "garbage": ([b"garbage\n"], True),
    "half an event": ([b'data: {"choices":[{"index"'], True),
    "a line without end": ([b"data: " + b"x" * 2_000_000], True),
    "end without finish": ([b"data: [DONE]\n\n"], True),
    "two choices": ([b'data: {"choices":[{"index":0},{"index":1}]}\n\n'], True),
    "a negative token": ([b'data: {"choices":[{"index":0,"token_ids":[-1]}]}\n\n'], True),
    "more than asked for": ([b'data: {"choices":[{"index":0,"token_ids":[1,2,3,4,5,6,7,8,9]}]}\n\n'], True),
    "death": ([], True),
    "silence": ([], False),
}
BRIEF = Deadlines(first_token_s=0.2, token_gap_s=0.2, health_interval_s=0.02, retry_after_s=7)


@pytest.mark.parametrize("name", BROKEN_STREAMS)
async def test_a_stream_that_breaks_after_its_first_token_goes_on_elsewhere(
    open_engine, prefiller, decoder, make_worker, generate_request, name
) -> None:
    lines, die = BROKEN_STREAMS[name]
    decoder.on_decode = decoder.streaming_then([decoder.chunk([11]), *lines], die=die)
    spare = make_worker("d1", "decode")
    async with open_engine(prefiller, decoder, spare, deadlines=BRIEF) as engine:
        generation = engine.submit(generate_request)
        assert await drain(generation) == [TokenChunk((11,)), TokenChunk((12,)), TokenChunk((13,), "stop")]
        assert not any(worker.running for worker in engine.snapshot())
    (body,) = spare.bodies
    assert body["token_ids"] == [*generate_request.prompt_ids, 11]
    assert body["sampling_params"]["max_tokens"] == 7
    assert (body["kv_transfer_params"]["output_from"], body["kv_transfer_params"]["attempt"]) == (1, 2)
    assert generation.attempts == (
        Attempt(0, "prefill", "p0", 0, 0),
        Attempt(1, "decode", "d0", 0, 1),
        Attempt(2, "decode", "d1", 1, 3),
    )


STATES: list[dict[str, Any]] = [{"seed": 0}, {"presence_penalty": 0.1}, {"frequency_penalty": -0.1}]


@pytest.mark.parametrize("state", STATES, ids="+".join)
async def test_a_stream_whose_tokens_depend_on_more_than_tokens_ends_in_engine_failed(
    open_engine, prefiller, decoder, make_worker, generate_request, state
) -> None:
    decoder.on_decode = decoder.streaming_then([decoder.chunk([11])], die=True)
    spare = make_worker("d1", "decode")
    sampling = dataclasses.replace(generate_request.sampling, **state)
    async with open_engine(prefiller, decoder, spare, deadlines=BRIEF) as engine:
        reading = aiter(engine.submit(dataclasses.replace(generate_request, sampling=sampling)))
        assert await anext(reading) == TokenChunk((11,))
        with pytest.raises(EngineFailed, match="d0"):
            await anext(reading)
        assert not any(worker.running for worker in engine.snapshot())
    assert not spare.bodies


@pytest.mark.parametrize("name", [*BROKEN_STREAMS, "stop without a token"])
async def test_a_stream_that_breaks_before_its_first_token_is_retried_elsewhere(
    open_engine, prefiller, decoder, make_worker, generate_request, name
) -> None:
    lines, die = BROKEN_STREAMS.get(name, ([decoder.chunk([], "stop")], True))
    decoder.on_decode = decoder.streaming_then(lines, die=die)
    spare = make_worker("d1", "decode")
    async with open_engine(prefiller, decoder, spare, deadlines=BRIEF) as engine:
        chunks = await drain(engine.submit(generate_request))
    assert chunks[-1].finish == "stop"
    assert (len(prefiller.bodies), len(decoder.bodies), len(spare.bodies)) == (1, 1, 1)
    assert spare.bodies[0]["kv_transfer_params"]["attempt"] == 2, "all calls of a request are counted"


@pytest.mark.parametrize("name", BROKEN_STREAMS)
async def test_a_stream_that_breaks_before_its_first_token_with_no_other_worker_is_refused(
    open_engine, prefiller, decoder, generate_request, name
) -> None:
    lines, die = BROKEN_STREAMS[name]
    decoder.on_decode = decoder.streaming_then(lines, die=die)
    async with open_engine(prefiller, decoder, deadlines=BRIEF) as engine:
        generation = engine.submit(generate_request)
        await generation.prefilled()
        with pytest.raises((EngineUnavailable, WorkerAnswerInvalid)):
            await drain(generation)


async def test_no_third_worker_is_tried(open_engine, prefiller, make_worker, generate_request) -> None:
    decoders = [make_worker(f"d{n}", "decode") for n in range(3)]
    for double in decoders:
        double.on_decode = double.streaming_then([], die=True)
    async with open_engine(prefiller, *decoders) as engine:
        with pytest.raises(EngineUnavailable):
            await drain(engine.submit(generate_request))
    assert sum(len(double.bodies) for double in decoders) == 2


async def test_a_dead_prefill_worker_is_replaced_and_the_second_attempt_attested(
    open_engine, prefiller, decoder, make_worker, generate_request
) -> None:
    spare = make_worker("p1", "prefill")
    async with open_engine(prefiller, spare, decoder) as engine:
        prefiller.on_prefill = body_of(error_of("EngineCore encountered an issue"), 500)
        attestation, _ = await engine.submit(generate_request).prefilled()
    assert (attestation.worker, attestation.attempt) == ("p1", 1)


async def test_a_prefill_that_answers_too_late_makes_the_engine_unavailable(
    open_engine, prefiller, decoder, generate_request
) -> None:
    prefiller.on_prefill = prefiller.hang
    async with open_engine(prefiller, decoder, deadlines=dataclasses.replace(BRIEF, prefill_s=0.1)) as engine:
        generation = engine.submit(generate_request)
        with pytest.raises(EngineUnavailable, match="in time"):
            await generation.prefilled()
        await prefiller.left.wait()  # the worker saw the connection close
        assert generation.called, "the worker may attest what it did"


async def test_a_full_worker_refuses_instead_of_queueing_without_bound(
    open_engine, prefiller, decoder, generate_request
) -> None:
    prefiller.on_prefill = prefiller.hang
    async with open_engine(prefiller, decoder, worker_requests_max=1) as engine:
        first = engine.submit(generate_request)
        await prefiller.entered.wait()
        refused = engine.submit(generate_request)
        with pytest.raises(EngineUnavailable, match="full"):
            await refused.prefilled()
        assert (first.called, refused.called) == (True, False)
        await first.cancel()


def test_a_request_that_cannot_be_is_refused_where_it_is_made(generate_request: GenerateRequest) -> None:
    for changes in ({"prompt_ids": ()}, {"nonce": b"short"}, {"tenant": ""}):
        with pytest.raises(ValueError, match="must"):
            dataclasses.replace(generate_request, **changes)
