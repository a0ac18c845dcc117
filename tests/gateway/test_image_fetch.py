"""Images that lie elsewhere: fetched from public addresses alone, bounded, and believed in nothing."""

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from deepseek_recipe import DataUrlImageSource, UrlImageSource

from gateway.errors import answer_of
from gateway.images import ImageReader
from gateway.options import FetchOptions
from gateway.refusal import ImageNotFetched, ImagesBusy
from recipe.errors import ParameterInvalid
from recipe.images import ImageBounds, Images, origin_of
from tests.pictures import bomb, data_url, png

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"  # the one is taken for public, the other for what it is
PICTURE = png(5, 3)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

# Addresses behind which credentials, routers, databases and colleagues are, in many spellings.
PRIVATE = {
    "loopback": "127.0.0.1",
    "loopback, other end": "127.255.255.254",
    "loopback of IPv6": "::1",
    "unspecified": "0.0.0.0",  # noqa: S104 - judged, not bound.
    "this network": "0.1.2.3",
    "unspecified of IPv6": "::",
    "10/8": "10.0.0.1",
    "172.16/12": "172.16.0.1",
    "172.16/12, last": "172.31.255.255",
    "192.168/16": "192.168.1.1",
    "carrier-grade NAT": "100.64.0.1",
    "a cloud's metadata in carrier-grade NAT": "100.100.100.200",
    "link-local": "169.254.1.1",
    "metadata": "169.254.169.254",
    "metadata of containers": "169.254.170.2",
    "metadata of IPv6": "fd00:ec2::254",
    "host agent": "168.63.129.16",
    "IETF's own": "192.0.0.8",
    "documentation": "192.0.2.1",
    "benchmarks": "198.18.0.1",
    "6to4 relay": "192.88.99.1",
    "multicast": "224.0.0.251",
    "reserved": "240.0.0.1",
    "broadcast": "255.255.255.255",
    "unique local": "fc00::1",
    "link-local of IPv6": "fe80::1",
    "link-local with a zone": "fe80::1%lo",
    "site-local": "fec0::1",
    "multicast of IPv6": "ff02::1",
    "documentation of IPv6": "2001:db8::1",
    "IPv4-mapped loopback": "::ffff:127.0.0.1",
    "IPv4-mapped private": "::ffff:10.0.0.1",
    "IPv4-compatible": "::127.0.0.1",
    "IPv4-translated": "::ffff:0:127.0.0.1",
    "6to4 of loopback": "2002:7f00:1::1",
    "Teredo": "2001:0:7f00:1::1",
    "NAT64 of metadata": "64:ff9b::a9fe:a9fe",
    "NAT64 of a network's own": "64:ff9b:1::a00:1",
    "no address": "localhost",
    "short": "127.1",
    "a number": "2130706433",
}
PUBLIC = [
    "93.184.216.34",
    "8.8.8.8",
    "2606:2800:220:1::1",
    "64:ff9b::808:808",
    "::ffff:8.8.8.8",
    "172.32.0.1",
]


@dataclass
class Names(AbstractResolver):
    """A resolver that answers each name by the next of its addresses, the last one again and again."""

    known: dict[str, list[str]]
    asked: list[str] = field(default_factory=list)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        addresses = self.known.get(host)
        if not addresses:
            raise OSError(None, "no such name")
        address = addresses.pop(0) if len(addresses) > 1 else addresses[0]
        return [
            ResolveResult(hostname=host, host=one, port=port, family=_family(one), proto=0, flags=0)
            for one in address.split()
        ]

    async def close(self) -> None: ...


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


@dataclass
class Web:
    """Servers at both addresses on one port, and who asked them."""

    port: int
    asked: list[tuple[str, str]]
    headers: list[dict[str, str]]

    def at(self, path: str, host: str = "pictures.example") -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def serving(**answers: Answer) -> AsyncIterator[Web]:
    asked: list[tuple[str, str]] = []
    headers: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        asked.append((request.transport.get_extra_info("sockname")[0], request.path))
        headers.append({name.lower(): value for name, value in request.headers.items()})
        return await answers[request.path.strip("/")](request)

    runner = web.ServerRunner(web.Server(answer, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    try:
        first = web.TCPSite(runner, HERE, 0)
        await first.start()
        port = runner.addresses[0][1]
        await web.TCPSite(runner, ELSEWHERE, port).start()
        yield Web(port, asked, headers)
    finally:
        await runner.cleanup()


async def picture(_: web.Request) -> web.Response:
    return web.Response(body=PICTURE, content_type="text/html")


def sends(to: str, status: int = 302) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, headers={"location": to} if to else {})

    return answer


def says(body: bytes, status: int = 200, **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status, headers=headers)

    return answer


@asynccontextmanager
async def reading(
    port: int, names: dict[str, list[str]] | None = None, bounds: ImageBounds | None = None, **options: Any
) -> AsyncIterator[tuple[ImageReader, Names]]:
    known = Names({"pictures.example": [HERE]} if names is None else names)
    reader = ImageReader(
        bounds or ImageBounds(),
        FetchOptions(**{"ports": frozenset({port}), "fetch_s": 5.0, **options}),
        resolver=known,
        allowed=(ip_network(HERE),),
    )
    await reader.open()
    try:
        yield reader, known
    finally:
        await reader.close()


async def read(reader: ImageReader, *urls: str, tenant: str = "t") -> Images:
    return await reader.read(tenant, [UrlImageSource(url, path=".messages[1]") for url in urls])


async def refusal(reader: ImageReader, url: str) -> str:
    """Why a URL is not fetched; a 400 that names the place and tells nothing of addresses."""
    with pytest.raises(ImageNotFetched) as caught:
        await read(reader, url)
    answer = answer_of(caught.value)
    assert (answer.status, answer.param, answer.code) == (400, "messages[1]", "invalid_image_url")
    assert HERE not in answer.message
    assert ELSEWHERE not in answer.message
    assert url not in answer.message
    return caught.value.reason


async def test_an_image_is_had_from_its_url_whatever_its_type_is_said_to_be() -> None:
    async with serving(a=picture) as there, reading(there.port) as (reader, names):
        source = UrlImageSource(there.at("/a"), "low")
        images = await reader.read("t", [source, source, DataUrlImageSource(data_url(png(9, 9)))])
    assert images[origin_of(source)].data == PICTURE
    assert images[origin_of(source)].detail == "low"
    assert len(images) == 2
    assert there.asked == [(HERE, "/a")]
    assert names.asked == ["pictures.example"]


async def test_nothing_of_ours_goes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.2:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.2:9")
    async with serving(a=picture) as there, reading(there.port) as (reader, _):
        await read(reader, there.at("/a"))
    [headers] = there.headers
    assert set(headers) == {"host", "accept", "accept-encoding", "user-agent", "connection"}
    assert headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("address", PRIVATE.values(), ids=PRIVATE)
async def test_a_name_that_resolves_to_a_private_address_is_not_knocked_at(address: str) -> None:
    if address == HERE:
        address = ELSEWHERE
    async with serving(a=picture) as there, reading(there.port, {"x.example": [address]}) as (reader, _):
        reason = await refusal(reader, there.at("/a", "x.example"))
    assert reason in ("its address is not of the public Internet", "its host does not answer")
    assert there.asked == []


@pytest.mark.parametrize(
    "host", [ELSEWHERE, "[::1]", "[::ffff:127.0.0.2]", "127.2", "2130706434", "0x7f000002", "0177.0.0.2"]
)
async def test_an_address_in_a_url_is_judged_as_one_behind_a_name(host: str) -> None:
    async with serving(a=picture) as there, reading(there.port, {}) as (reader, _):
        await refusal(reader, there.at("/a", host))
    assert there.asked == []


async def test_of_several_addresses_the_public_ones_are_tried() -> None:
    names = {"pictures.example": [f"{ELSEWHERE} ::1 {HERE}"]}
    async with serving(a=picture) as there, reading(there.port, names) as (reader, _):
        await read(reader, there.at("/a"))
    assert there.asked == [(HERE, "/a")]


async def test_redirects_are_followed_three_times_and_no_further() -> None:
    chain = {"a": sends("/b"), "b": sends("c", 307), "c": sends("/d", 308), "d": picture, "z": sends("/a")}
    async with serving(**chain) as there, reading(there.port) as (reader, names):
        await read(reader, there.at("/a"))
        assert names.asked == ["pictures.example"] * 4
        assert "more than 3 times" in await refusal(reader, there.at("/z"))
    assert [path for _, path in there.asked] == ["/a", "/b", "/c", "/d", "/z", "/a", "/b", "/c"]


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("http://127.0.0.2:{port}/secret", "not of the public Internet"),
        ("http://inside.example:{port}/secret", "not of the public Internet"),
        ("//inside.example:{port}/secret", "not of the public Internet"),
        ("http://pictures.example:22/", "port 22"),
        ("http://u:p@pictures.example:{port}/", "credentials"),
        ("file:///etc/passwd", "neither http nor https"),
        ("gopher://pictures.example:{port}/", "neither http nor https"),
        ("data:image/png;base64,AAAA", "neither http nor https"),
        ("http://[/", "malformed"),
        ("", ""),
    ],
)
async def test_a_redirect_is_judged_as_a_url_of_the_clients(to: str, why: str) -> None:
    answers: dict[str, Answer] = {"secret": picture}

    async def redirect(request: web.Request) -> web.StreamResponse:
        return await sends(to.format(port=there.port))(request)

    async with serving(a=redirect, **answers) as there:
        names = {"pictures.example": [HERE], "inside.example": [ELSEWHERE]}
        async with reading(there.port, names) as (reader, _):
            assert why in await refusal(reader, there.at("/a"))
    assert all(path == "/a" for _, path in there.asked)


async def test_a_name_that_changes_its_mind_is_judged_anew_where_the_socket_is_made() -> None:
    """Rebinding: public when it is looked at, private when it is used. It is looked at where it is used."""
    names = {"rebinding.example": [HERE, ELSEWHERE]}
    async with (
        serving(a=sends("/secret"), secret=picture) as there,
        reading(there.port, names) as (reader, known),
    ):
        assert "not of the public" in await refusal(reader, there.at("/a", "rebinding.example"))
    assert there.asked == [(HERE, "/a")]
    assert known.asked == ["rebinding.example"] * 2


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://pictures.example:6379/", "port 6379"),
        ("https://pictures.example/", "port 443"),
        ("http://user@pictures.example:{port}/a", "credentials"),
        ("http://user:word@pictures.example:{port}/a", "credentials"),
        ("http://unknown.example:{port}/a", "does not answer"),
        ("http://pictures.example:{port}/" + "a" * 9000, "characters"),
        ("http:///a", "neither http"),
        ("http://pictures.example:99999/a", "malformed"),
    ],
)
async def test_urls_that_are_not_asked_for(url: str, why: str) -> None:
    async with serving(a=picture) as there, reading(there.port) as (reader, _):
        assert why in await refusal(reader, url.format(port=there.port))
    assert there.asked == []


def test_the_ports_of_http_alone_are_asked_for() -> None:
    assert FetchOptions().ports == {80, 443}


@pytest.mark.parametrize("status", [204, 304, 400, 401, 403, 404, 429, 500, 503])
async def test_what_a_host_refuses_is_said_by_its_status(status: int) -> None:
    async with serving(a=says(b"", status)) as there, reading(there.port) as (reader, _):
        assert await refusal(reader, there.at("/a")) == f"its host answers {status}"


@pytest.mark.parametrize("body", [b"<html></html>", PICTURE[:-20], bomb(), b""])
async def test_what_comes_is_read_like_what_was_sent(body: bytes) -> None:
    async with serving(a=says(body)) as there, reading(there.port) as (reader, _):
        with pytest.raises(ParameterInvalid) as caught:
            await read(reader, there.at("/a"))
    assert caught.value.param == "messages[1]"


async def test_compressed_answers_are_not_expanded() -> None:
    packed = gzip.compress(bytes(50_000_000))
    headers = {"content-encoding": "gzip", "content-type": "image/png"}
    async with serving(a=says(packed, **headers)) as there, reading(there.port) as (reader, _):
        with pytest.raises(ParameterInvalid, match="no PNG"):
            await read(reader, there.at("/a"))


async def test_an_endless_answer_is_left_when_it_is_too_long() -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(bytes(10_000))
            sent += 10_000

    bounds = ImageBounds(image_bytes_max=100_000)
    async with serving(a=endless) as there, reading(there.port, bounds=bounds) as (reader, _):
        assert "more than 100000 bytes" in await refusal(reader, there.at("/a"))
    assert sent < 20_000_000  # what buffers hold


async def test_a_length_that_is_too_long_is_refused_before_it_comes() -> None:
    async def long(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "100001"})
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    bounds = ImageBounds(image_bytes_max=100_000)
    async with serving(a=long) as there, reading(there.port, bounds=bounds) as (reader, _):
        assert "more than 100000 bytes" in await refusal(reader, there.at("/a"))


async def test_the_images_of_a_request_are_bounded_together() -> None:
    bounds = ImageBounds(request_bytes_max=3 * len(PICTURE))
    async with serving(a=picture) as there, reading(there.port, bounds=bounds) as (reader, _):
        assert len(await read(reader, *(there.at(f"/a?{n}") for n in range(3)))) == 3
        with pytest.raises(ImageNotFetched, match="request_bytes_max"):
            await read(reader, *(there.at(f"/a?{n}") for n in range(4)))
        with pytest.raises(ParameterInvalid, match="request_bytes_max"):
            await read(reader, *([there.at("/a")] * 4))
        with pytest.raises(ParameterInvalid, match="image_count_max"):
            await read(reader, *([there.at("/a")] * 17))


async def drips(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for byte in PICTURE * 1000:
        await response.write(bytes([byte]))
        await asyncio.sleep(0.01)
    return response


async def silent(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def circles(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(0.08)
    return web.Response(status=302, headers={"location": "/a"})


@pytest.mark.parametrize("slow", [drips, silent, circles])
async def test_time_is_bounded_for_all_of_a_fetch(slow: Answer) -> None:
    async with serving(a=slow) as there, reading(there.port, fetch_s=0.2) as (reader, _):
        async with asyncio.timeout(2):
            assert await refusal(reader, there.at("/a")) == "it did not come within 0.2 seconds"


async def test_who_fetches_much_waits_alone() -> None:
    arrived = asyncio.Semaphore(0)

    async def waits(_: web.Request) -> web.StreamResponse:
        arrived.release()
        return await silent(_)

    async with (
        serving(a=waits, b=picture) as there,
        reading(there.port, at_once_max=3, at_once_tenant_max=2) as (reader, _),
    ):
        greedy = asyncio.create_task(read(reader, *(there.at(f"/a?{n}") for n in range(4))))
        for _n in range(2):
            await arrived.acquire()
        await read(reader, there.at("/b"), tenant="other")
        assert [path for _, path in there.asked] == ["/a", "/a", "/b"]
        greedy.cancel()
        await asyncio.gather(greedy, return_exceptions=True)
        await read(reader, there.at("/b"))


async def test_who_finds_no_place_in_time_is_told_to_come_again() -> None:
    async with (
        serving(a=picture) as there,
        reading(there.port, at_once_max=1, fetch_s=0.1) as (reader, _),
        reader._room,
    ):
        with pytest.raises(ImagesBusy) as caught:
            await read(reader, there.at("/a"))
    answer = answer_of(caught.value)
    assert (answer.status, bool(answer.retry_after_s)) == (503, True)
    assert there.asked == []


async def test_one_failure_ends_the_others() -> None:
    gone = asyncio.Event()

    async def left(request: web.Request) -> web.StreamResponse:
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        raise AssertionError

    async with serving(a=left, b=says(b"", 404)) as there, reading(there.port) as (reader, _):
        with pytest.raises(ImageNotFetched, match="404"):
            await read(reader, there.at("/a"), there.at("/b"))
        async with asyncio.timeout(2):
            await gone.wait()


async def test_a_house_that_fetches_nothing_says_so() -> None:
    async with serving(a=picture) as there, reading(there.port, urls=False) as (reader, _):
        assert "as base64" in await refusal(reader, there.at("/a"))
        assert len(await reader.read("t", [DataUrlImageSource(data_url(PICTURE))])) == 1
    assert there.asked == []


async def test_what_speaks_no_http_is_told_as_that() -> None:
    async def noise(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(noise, HERE, 0)
    port = server.sockets[0].getsockname()[1]
    async with server, reading(port) as (reader, _):
        reason = await refusal(reader, f"http://pictures.example:{port}/")
    assert "as HTTP hosts do" in reason
    assert "SSH" not in reason


async def test_no_connection_is_left_for_others() -> None:
    async with serving(a=picture) as there, reading(there.port) as (reader, _):
        await read(reader, there.at("/a"))
        session = reader._session
        assert isinstance(session, aiohttp.ClientSession)
        assert isinstance(session.connector, aiohttp.TCPConnector)
        assert not session.connector._conns
    assert replace(reader.options).urls
