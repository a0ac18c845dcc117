"""Posting to endpoints: what is sent, what counts as taken, and what is not followed."""

import asyncio
from collections.abc import AsyncIterator
from ipaddress import ip_network
from typing import Any

import pytest
from aiohttp import web

from gateway.deliver import SAID_BYTES_MAX, HttpSender

HERE = (ip_network("127.0.0.0/8"),)


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, list[Any]]]:
    """An endpoint that answers by its path."""
    got: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        got.append((request.path, await request.read(), request.headers))
        match request.path:
            case "/slow":
                await asyncio.Event().wait()
            case "/drip":
                stream = web.StreamResponse(status=500)
                await stream.prepare(request)
                await stream.write(b"begun")
                await asyncio.Event().wait()
            case "/long":
                return web.Response(status=500, body=b"x" * 10**6)
            case "/moved":
                raise web.HTTPFound("/ok")
            case "/cookie":
                response = web.Response()
                response.set_cookie("a", "b")
                return response
        return web.Response(status=200, text="thanks")

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", got
    await runner.cleanup()


@pytest.fixture
async def sender() -> AsyncIterator[HttpSender]:
    sender = HttpSender(HERE, timeout_s=0.3)
    yield sender
    await sender.close()


async def test_body_and_headers_arrive_as_they_are(server: Any, sender: HttpSender) -> None:
    url, got = server
    reply = await sender.post(f"{url}/ok", b'{"a":1}', {"webhook-id": "ntc_1"})
    assert (reply.status, reply.said, reply.taken) == (200, "thanks", True)
    ((_, body, headers),) = got
    assert body == b'{"a":1}'
    assert headers["webhook-id"] == "ntc_1"
    assert headers["content-type"] == "application/json"


async def test_a_redirect_is_not_followed_and_no_cookie_kept(server: Any, sender: HttpSender) -> None:
    url, got = server
    reply = await sender.post(f"{url}/moved", b"{}", {})
    assert (reply.status, reply.taken) == (302, False)
    for _ in range(2):
        await sender.post(f"{url}/cookie", b"{}", {})
    assert [path for path, _, _ in got] == ["/moved", "/cookie", "/cookie"]
    assert "cookie" not in got[-1][2]


@pytest.mark.parametrize(("path", "status"), [("/slow", None), ("/drip", 500)])
async def test_who_does_not_answer_in_time_has_not_taken_it(
    server: Any, sender: HttpSender, path: str, status: int | None
) -> None:
    reply = await sender.post(f"{server[0]}{path}", b"{}", {})
    assert (reply.status, reply.taken) == (status, False)
    assert reply.duration.total_seconds() < 5


async def test_of_a_long_answer_the_beginning_is_read(server: Any, sender: HttpSender) -> None:
    reply = await sender.post(f"{server[0]}/long", b"{}", {})
    assert reply.status == 500
    assert len(reply.said) <= SAID_BYTES_MAX


async def test_nobody_there_and_what_is_not_allowed_are_faults_and_no_errors(server: Any) -> None:
    url, got = server
    strict, here = HttpSender(timeout_s=2), HttpSender(HERE, timeout_s=2)
    try:
        for sender, address in (
            (here, "http://127.0.0.1:1/"),
            (here, "http://10.0.0.1/"),
            (strict, f"{url}/ok"),
            (strict, f"{url.replace('http', 'https')}/ok"),
            (strict, f"https://localhost:{url.rpartition(':')[2]}/ok"),
            (strict, "https://a.invalid/"),
            (strict, "https://exa mple.com/"),
            (strict, "https://2130706433/"),
        ):
            reply = await sender.post(address, b"{}", {})
            assert (reply.status, reply.taken) == (None, False), address
            assert reply.said, address
    finally:
        await strict.close()
        await here.close()
    assert got == []
