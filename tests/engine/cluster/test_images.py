"""Requests with images: what is sent where, what is asked first, and what is known of their blocks."""

import asyncio
import base64
import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from engine.api import GenerateRequest, ImageInput, ImageRefused, PromptRefused, WorkerAnswerInvalid
from engine.cluster import request as requests
from engine.cluster.bodies import Bodies
from engine.cluster.prefixes import Prefixes, PromptTokens
from engine.proof.prefix import ImageRun, block_hashes, image_name
from engine.store.directory import PrefixStore
from engine.wire import IMAGE_REFUSED, IMAGES

NAMESPACE = "5" * 64


def image(offset: int, tokens: int, content: bytes = b"a file") -> ImageInput:
    return ImageInput(offset, tokens, content, hashlib.sha256(content).hexdigest())


@pytest.fixture
def seeing(generate_request: GenerateRequest) -> GenerateRequest:
    """130 tokens, of which 10 to 30 and 50 to 60 are images."""
    return dataclasses.replace(generate_request, images=(image(10, 20), image(50, 10, b"another")))


@pytest.mark.parametrize(
    "images",
    [
        (image(120, 11),),
        (image(10, 20), image(29, 5)),
        (image(50, 10), image(10, 20)),
        (image(10, 20), image(10, 20)),
    ],
)
def test_images_lie_in_the_prompt_in_order_and_apart(
    generate_request: GenerateRequest, images: tuple[ImageInput, ...]
) -> None:
    with pytest.raises(ValueError, match="image"):
        dataclasses.replace(generate_request, images=images)


@pytest.mark.parametrize(
    "wrong", [(-1, 5, b"x", "0" * 64), (0, 0, b"x", "0" * 64), (0, 1, b"", "0" * 64), (0, 1, b"x", "sha")]
)
def test_an_image_has_tokens_bytes_and_a_digest(wrong: tuple[int, int, bytes, str]) -> None:
    with pytest.raises(ValueError, match="image"):
        ImageInput(*wrong)


def test_images_are_bounded(seeing: GenerateRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "IMAGES_BYTES_MAX", len(b"a file") + len(b"another") - 1)
    with pytest.raises(ValueError, match="bytes"):
        dataclasses.replace(seeing)


async def test_images_go_with_every_call(open_engine, prefiller, decoder, seeing) -> None:
    async with open_engine(prefiller, decoder) as engine:
        _ = [chunk async for chunk in engine.submit(seeing)]
    for body in (*prefiller.bodies, *decoder.bodies):
        assert body[IMAGES] == [
            {"offset": 10, "tokens": 20, "data": base64.b64encode(b"a file").decode()},
            {"offset": 50, "tokens": 10, "data": base64.b64encode(b"another").decode()},
        ]
    assert (len(prefiller.bodies), len(decoder.bodies)) == (1, 1)


async def test_an_answer_goes_on_elsewhere_with_its_images(
    open_engine, prefiller, make_worker, seeing
) -> None:
    first, second = make_worker("d0", "decode"), make_worker("d1", "decode")
    calls: list[dict[str, Any]] = []

    async def dying_once(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        calls.append(body)
        if len(calls) == 1:
            return await first.streaming_then([first.chunk([11])], die=True)(request, body)
        return await second.answered(request, body)

    first.on_decode = second.on_decode = dying_once
    async with open_engine(prefiller, first, second) as engine:
        assert [chunk async for chunk in engine.submit(seeing)][-1].finish == "stop"
    assert [body["kv_transfer_params"]["output_from"] for body in calls] == [0, 1]
    assert calls[0][IMAGES] == calls[1][IMAGES]


async def test_a_refused_image_is_told_apart_and_tried_nowhere_else(
    open_engine, prefiller, make_worker, seeing
) -> None:
    spare = make_worker("p1", "prefill")

    async def refused(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        message = f"{IMAGE_REFUSED}image 2 is none"
        return web.json_response({"error": {"message": message, "code": 400}}, status=400)

    prefiller.on_prefill = spare.on_prefill = refused
    async with open_engine(prefiller, spare, make_worker("d0", "decode")) as engine:
        with pytest.raises(ImageRefused, match="image 2"):
            await engine.submit(seeing).prefilled()
    assert len(prefiller.bodies) + len(spare.bodies) == 1


async def test_images_are_encoded_before_the_prompt_is_computed(
    open_engine, prefiller, decoder, make_worker, seeing, generate_request
) -> None:
    encoder = make_worker("e0", "encode")
    order: list[str] = []

    async def encoded(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        order.append("encode")
        return web.json_response({"choices": [{"index": 0, "token_ids": [], "finish_reason": "stop"}]})

    async def prefilled(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        order.append("prefill")
        return await prefiller.attested(request, body)

    encoder.on_prefill, prefiller.on_prefill = encoded, prefilled
    async with open_engine(encoder, prefiller, decoder) as engine:
        generation = engine.submit(seeing)
        _ = [chunk async for chunk in generation]
        _ = [chunk async for chunk in engine.submit(generate_request)]
        assert engine.counts.placements["encode", "images"] == 1
    assert order == ["encode", "prefill", "prefill"], "a request without images asks nobody to encode"
    assert [attempt.attempt for attempt in generation.attempts] == [0, 1]
    (body,) = encoder.bodies
    ids = list(seeing.prompt_ids)
    assert body["token_ids"] == ids[10:30] + ids[50:60]
    assert [(each["offset"], each["tokens"]) for each in body[IMAGES]] == [(0, 20), (20, 10)]
    assert body["cache_salt"] == prefiller.bodies[0]["cache_salt"]
    assert "kv_transfer_params" not in body


async def test_without_its_encode_worker_a_request_is_served_all_the_same(
    open_engine, prefiller, decoder, make_worker, seeing
) -> None:
    encoder = make_worker("e0", "encode")
    async with open_engine(encoder, prefiller, decoder) as engine:
        for fault in (encoder.streaming_then([], die=True), _garbage):
            encoder.on_prefill = fault
            while not engine.snapshot()[0].ready:
                await asyncio.sleep(0.01)
            assert [chunk async for chunk in engine.submit(seeing)][-1].finish == "stop"
        await encoder.stop()
        while engine.snapshot()[0].ready:
            await asyncio.sleep(0.01)
        assert [chunk async for chunk in engine.submit(seeing)][-1].finish == "stop"


async def test_a_cancel_reaches_the_worker_that_encodes(
    open_engine, prefiller, decoder, make_worker, seeing
) -> None:
    encoder = make_worker("e0", "encode")
    encoder.on_prefill = encoder.hang
    async with open_engine(encoder, prefiller, decoder) as engine:
        generation = engine.submit(seeing)
        await encoder.entered.wait()
        assert (generation.called, engine.snapshot()[0].running) == (False, 1)
        await generation.cancel()
        assert engine.snapshot()[0].running == 0
    assert encoder.aborted == [f"generate-tokens-{seeing.request_id}-encode"]
    assert prefiller.bodies == []


async def test_an_image_that_cannot_be_encoded_is_refused_at_once(
    open_engine, prefiller, decoder, make_worker, seeing
) -> None:
    encoder = make_worker("e0", "encode")

    async def refused(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": IMAGE_REFUSED, "code": 400}}, status=400)

    encoder.on_prefill = refused
    async with open_engine(encoder, prefiller, decoder) as engine:
        with pytest.raises(ImageRefused):
            await engine.submit(seeing).prefilled()
    assert prefiller.bodies == []


async def test_an_encode_worker_is_given_no_prompt_and_no_output(open_engine, make_worker, generate_request):
    encoder = make_worker("e0", "encode")
    async with open_engine(encoder, elastic=True) as engine:
        assert not engine.ready
        with pytest.raises(Exception, match="no worker that can take a prompt"):
            await engine.submit(generate_request).prefilled()
    assert encoder.bodies == []


async def test_the_stored_part_of_a_prompt_with_images_is_found_by_which_they_are(
    tmp_path: Path, generate_request: GenerateRequest
) -> None:
    bodies = Bodies(b"s" * 32)
    ids = tuple(range(640))
    one, other = (
        dataclasses.replace(generate_request, prompt_ids=ids, images=(image(130, 100, content),))
        for content in (b"one", b"other")
    )
    salt = bodies.salt(one)
    (run,) = bodies.images(one)
    assert run == ImageRun(130, 100, image_name(salt, hashlib.sha256(b"one").hexdigest()))
    blocks = PrefixStore(tmp_path, lambda: 1_790_000_000).namespace(NAMESPACE, one.tenant)
    for block_hash in block_hashes(ids, salt, images=[run]):
        blocks.publish(block_hash, [memoryview(b"kv")], "chat")
    reading = Prefixes(tmp_path)
    stored = []
    for request in (one, other):
        prompt = PromptTokens(ids, salt, request.tenant, bodies.images(request))
        known = await reading.look_up(prompt, {NAMESPACE})
        assert known is not None
        stored.append(known.stored_tokens[NAMESPACE])
    reading.close()
    assert stored == [576, 128], "the other image's blocks are not there"


async def test_an_attestation_of_another_image_is_not_accepted(
    open_engine, prefiller, decoder, seeing
) -> None:
    async def of_another(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        other = {**body[IMAGES][0], "data": base64.b64encode(b"a filf").decode()}
        return await prefiller.attested(request, body | {IMAGES: [other, body[IMAGES][1]]})

    prefiller.on_prefill = of_another
    async with open_engine(prefiller, decoder) as engine:
        with pytest.raises(WorkerAnswerInvalid, match="prompt_commitment"):
            await engine.submit(seeing).prefilled()


async def _garbage(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=404)


def test_a_refused_image_is_a_refused_prompt() -> None:
    assert issubclass(ImageRefused, PromptRefused)
