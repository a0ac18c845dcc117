"""Constrained answers and log probabilities on their way: who is asked, and what is never carried."""

import dataclasses
import json
from typing import Any

import pytest
from aiohttp import web

from engine.api import (
    Constraint,
    ConstraintRefused,
    EngineFailed,
    GenerateRequest,
    PromptRefused,
    TokenLogprobs,
)
from engine.proof.coverage import Attempt

FIRST: dict[str, Any] = {"first_token": True}
OUTPUTS = {
    Constraint("json_object"): {"json_object": True},
    Constraint("json", "{}"): {"json": "{}"},
    Constraint("regex", "a+"): {"regex": "a+"},
    Constraint("structural_tag", '{"format":1}'): {"structural_tag": '{"format":1}'},
}


def asking(request: GenerateRequest, **sampling: Any) -> GenerateRequest:
    return dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, **sampling))


@pytest.mark.parametrize("constraint", OUTPUTS)
async def test_decode_alone_is_asked_to_hold_an_answer(
    open_engine, prefiller, decoder, generate_request, constraint
) -> None:
    async with open_engine(prefiller, decoder, **FIRST) as engine:
        generation = engine.submit(asking(generate_request, constraint=constraint))
        assert len([chunk async for chunk in generation]) == 2
    (prefill,), (decode,) = prefiller.bodies, decoder.bodies
    assert prefill["sampling_params"] == {"max_tokens": 1, "temperature": 0.0, "detokenize": False}
    assert decode["sampling_params"]["structured_outputs"] == OUTPUTS[constraint]
    assert generation.attempts == (Attempt(0, "prefill", "p0", 0, 0), Attempt(1, "decode", "d0", 0, 3))


async def test_a_worker_that_does_both_holds_it_from_its_first_token(
    open_engine, make_worker, generate_request
) -> None:
    both = make_worker("w0", "both")
    async with open_engine(both, **FIRST) as engine:
        generation = engine.submit(asking(generate_request, constraint=Constraint("regex", "a+")))
        _ = [chunk async for chunk in generation]
    (body,) = both.bodies
    assert body["sampling_params"]["structured_outputs"] == {"regex": "a+"}
    assert generation.attempts == (Attempt(0, "both", "w0", 0, 3),)


async def test_a_held_answer_never_goes_on_elsewhere(
    open_engine, make_worker, prefiller, decoder, generate_request
) -> None:
    """What a grammar has seen is lost with its worker: the rest would begin the answer anew."""
    spare = make_worker("d1", "decode")
    for worker in (decoder, spare):
        worker.on_decode = worker.streaming_then([worker.chunk([11])], die=True)
    async with open_engine(prefiller, decoder, spare) as engine:
        generation = engine.submit(asking(generate_request, constraint=Constraint("json_object")))
        with pytest.raises(EngineFailed):
            _ = [chunk async for chunk in generation]
    assert len(decoder.bodies) + len(spare.bodies) == 1


@pytest.mark.parametrize(
    "case",
    [
        (Constraint("regex", "("), "Failed to transform regex into a grammar: it is none", ConstraintRefused),
        (
            Constraint("regex", "("),
            "The decoder prompt is longer than the maximum model length",
            PromptRefused,
        ),
        (None, "Failed to transform regex into a grammar", PromptRefused),
    ],
)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "at once"])
async def test_what_a_worker_refuses_of_a_request_is_told_apart(
    open_engine, prefiller, decoder, generate_request, case, streamed
) -> None:
    constraint, message, raised = case

    async def refused(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        event = decoder.error(message, 400)
        if streamed:
            return await decoder.stream(request, [event, b"data: [DONE]\n\n"])
        return web.Response(status=400, body=event.removeprefix(b"data: "))

    decoder.on_decode = refused
    async with open_engine(prefiller, decoder) as engine:
        with pytest.raises(raised) as told:
            _ = [chunk async for chunk in engine.submit(asking(generate_request, constraint=constraint))]
        assert type(told.value) is raised
        assert told.value.message == message
        assert engine.ready, "a refusal says nothing about the worker"
    assert len(decoder.bodies) == 1, "nor would another worker take it"


async def test_prefills_token_brings_its_log_probabilities_along(
    open_engine, prefiller, decoder, generate_request
) -> None:
    def content(token_id: int) -> dict[str, Any]:
        likely = {"token_id": token_id, "logprob": -0.5, "rank": 1}
        return {
            **likely,
            "top_logprobs": [likely, {"token_id": 7, "logprob": -1.0, "rank": 2}, likely | {"rank": 3}],
        }

    async def attested(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        answer = prefiller.prefill_answer(prefiller.keep(prefiller.attestation(body)), 11)
        answer["choices"][0]["logprobs"] = {"content": [content(11)]}
        return web.json_response(answer)

    async def answered(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        choice = {
            "index": 0,
            "token_ids": [12],
            "finish_reason": "stop",
            "logprobs": {"content": [content(12)]},
        }
        return await decoder.stream(
            request, [b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"]
        )

    prefiller.on_prefill, decoder.on_decode = attested, answered
    async with open_engine(prefiller, decoder, **FIRST) as engine:
        chunks = [chunk async for chunk in engine.submit(asking(generate_request, logprobs=2))]
    told = [logprobs for chunk in chunks for logprobs in chunk.logprobs]
    assert told == [TokenLogprobs(token_id, -0.5, ((token_id, -0.5), (7, -1.0))) for token_id in (11, 12)]
    assert [double.bodies[0]["sampling_params"]["logprobs"] for double in (prefiller, decoder)] == [3, 3]


@pytest.mark.parametrize(("asked", "sent"), [(None, None), (0, 0), (20, 21)])
async def test_one_more_is_asked_for_than_the_client_wants(
    open_engine, prefiller, decoder, generate_request, asked, sent
) -> None:
    async with open_engine(prefiller, decoder) as engine:
        _ = [chunk async for chunk in engine.submit(asking(generate_request, logprobs=asked))]
    assert decoder.bodies[0]["sampling_params"]["logprobs"] == sent


@pytest.mark.parametrize("logprobs", [-1, 21])
def test_logprobs_are_bounded(generate_request, logprobs) -> None:
    with pytest.raises(ValueError, match="between 0 and 20"):
        asking(generate_request, logprobs=logprobs)
