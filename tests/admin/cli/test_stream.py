"""The client behind `kvitto chat`, against a small HTTP server that speaks as the gateway does."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from admin.cli.errors import CommandFailed
from admin.cli.stream import Endpoint, complete, model_of

USAGE = {
    "prompt_tokens": 70,
    "completion_tokens": 2,
    "prompt_cache_hit_tokens": 64,
    "prompt_cache_miss_tokens": 6,
}
BODY = {"model": "m", "messages": []}


def data(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def chunk(content: str, finish: str | None = None, usage: dict[str, int] | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return data({"choices": [choice], "usage": usage})


WHOLE = (
    b": ping\n",
    chunk(""),
    chunk("Hej"),
    b": ping\n",
    chunk(" då"),
    chunk("", "stop", USAGE),
    data({"choices": [], "usage": USAGE}),
    b"data: [DONE]\n\n",
)


@asynccontextmanager
async def gateway(
    frames: tuple[bytes, ...] = (), refusal: web.Response | None = None
) -> AsyncIterator[Endpoint]:
    """Serves one canned stream, or one canned refusal; remembers nothing."""

    async def chat(request: web.Request) -> web.StreamResponse:
        assert request.headers["authorization"] == "Bearer kv_live_x"
        asked = await request.json()
        assert asked["stream"] is True
        assert asked["stream_options"] == {"include_usage": True}
        if refusal is not None:
            return refusal
        response = web.StreamResponse(headers={"x-request-id": "id-1", "content-type": "text/event-stream"})
        await response.prepare(request)
        for frame in frames:
            await response.write(frame)
        return response

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "first"}, {"id": "second"}]})

    application = web.Application()
    application.add_routes([web.post("/v1/chat/completions", chat), web.get("/v1/models", models)])
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield Endpoint(f"http://{host}:{port}/v1", "kv_live_x")
    finally:
        await runner.cleanup()


def refused(status: int, body: Any, **headers: str) -> web.Response:
    return web.Response(
        status=status, text=body if isinstance(body, str) else json.dumps(body), headers=headers
    )


EARLIER = {**USAGE, "completion_tokens": 1}


@pytest.mark.parametrize(
    "last",
    [
        (chunk("", "stop", USAGE),),
        (chunk("", "stop"), data({"choices": [], "usage": USAGE})),
        (chunk("", "stop"), data({"choices": [{"delta": {}}], "usage": USAGE})),
        (chunk("", "stop", EARLIER), data({"choices": [], "usage": USAGE})),
        (chunk("", "stop", USAGE), data({"choices": [], "usage": USAGE})),
    ],
    ids=["on the finish", "on no choices", "on an empty delta", "a later one", "the same again"],
)
async def test_usage_is_accepted_wherever_it_stands_and_the_last_one_wins(last: tuple[bytes, ...]) -> None:
    """diegosouzapw/OmniRoute#9750: accepted once, never summed."""
    async with gateway((chunk("Hej"), *last, b"data: [DONE]\n\n")) as endpoint:
        answer = await complete(endpoint, BODY, lambda _: None)
    assert (answer.text, answer.finish_reason, answer.usage) == ("Hej", "stop", USAGE)


async def test_text_is_handed_on_as_it_comes_and_usage_is_taken_once() -> None:
    heard: list[str] = []
    async with gateway(WHOLE) as endpoint:
        answer = await complete(endpoint, BODY, heard.append)
    assert heard == ["Hej", " då"]
    assert (answer.text, answer.finish_reason, answer.request_id) == ("Hej då", "stop", "id-1")
    assert answer.usage == USAGE
    assert answer.first_token_s is not None
    assert 0 < answer.first_token_s <= answer.total_s


FIRST = {**USAGE, "completion_tokens": 1}
PLACES: dict[str, list[Any]] = {
    "the finish chunk": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}],
    "no choice": [],
    "an empty delta": [{"delta": {}}],
}


@pytest.mark.parametrize("choices", PLACES.values(), ids=PLACES.keys())
async def test_usage_is_accepted_wherever_it_comes_and_the_last_one_stands(choices: list[Any]) -> None:
    """diegosouzapw/OmniRoute#9750: once, never summed."""
    last = b"data: " + json.dumps({"choices": choices, "usage": USAGE}).encode() + b"\n\n"
    async with gateway((chunk("Hej"), chunk("", "stop", FIRST), last, b"data: [DONE]\n\n")) as endpoint:
        answer = await complete(endpoint, BODY, lambda _: None)
    assert (answer.text, answer.finish_reason, answer.usage) == ("Hej", "stop", USAGE)


async def test_the_first_model_is_asked_when_none_is_named() -> None:
    async with gateway() as endpoint:
        assert await model_of(endpoint) == "first"


async def test_an_error_event_is_no_answer() -> None:
    error = b'data: {"error": {"message": "the worker died", "type": "api_error", "code": null}}\n\n'
    async with gateway((*WHOLE[:4], error)) as endpoint:
        with pytest.raises(CommandFailed, match="broke off: the worker died"):
            await complete(endpoint, BODY, lambda _: None)


async def test_a_stream_that_just_ends_is_no_answer() -> None:
    async with gateway(WHOLE[:5]) as endpoint:
        with pytest.raises(CommandFailed, match="broke off"):
            await complete(endpoint, BODY, lambda _: None)


@pytest.mark.parametrize(
    ("refusal", "line"),
    [
        (
            refused(
                402,
                {
                    "error": {
                        "message": "no credit",
                        "type": "x",
                        "param": None,
                        "code": "insufficient_balance",
                    }
                },
            ),
            "the API answered 402: no credit (insufficient_balance)",
        ),
        (
            refused(
                503,
                {"error": {"message": "no worker", "type": "unavailable", "param": None, "code": None}},
                **{"Retry-After": "5"},
            ),
            "the API answered 503: no worker (unavailable); try again in 5 s",
        ),
        (refused(502, "<html>bad gateway</html>"), "the API answered 502: <html>bad gateway</html>"),
    ],
    ids=["402", "503", "502"],
)
async def test_a_refusal_becomes_one_line(refusal: web.Response, line: str) -> None:
    async with gateway(refusal=refusal) as endpoint:
        with pytest.raises(CommandFailed) as failed:
            await complete(endpoint, BODY, lambda _: None)
    assert str(failed.value) == line


async def test_an_api_that_does_not_listen_becomes_one_line() -> None:
    async with gateway() as endpoint:
        pass
    with pytest.raises(CommandFailed, match=r"does not answer.*kvitto up"):
        await complete(endpoint, BODY, lambda _: None)
