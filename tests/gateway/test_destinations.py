"""Requests to addresses that others wrote: public ones alone, judged where the socket is made."""

import socket
from collections.abc import AsyncIterator
from ipaddress import ip_address, ip_network
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver

from gateway.destinations import DestinationRefused, guarded_connector, is_public, may_reach, url_fault

LOOPBACK = (ip_network("127.0.0.0/8"),)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),  # noqa: S104  not bound
        *("255.255.255.255", "224.0.0.1", "239.1.1.1", "192.0.2.1", "198.18.0.1", "240.0.0.1"),
        *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff0e::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1"),
        *("2002:7f00:1::", "2002:a9fe:a9fe::1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1"),
        "2001:0:4136:e378:8000:63bf:5601:5601",
        "2002:101:101::",
        *("168.63.129.16", "192.0.0.9", "192.88.99.1", "3fff::1", "4000::1", "fe80::1%lo"),
    ],
)
def test_what_only_we_reach_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"],
)
def test_what_everybody_reaches_is(address: str) -> None:
    assert is_public(ip_address(address))
    assert is_public(address)
    assert not is_public("localhost")


def test_an_allowed_network_is_reached_and_no_other() -> None:
    assert may_reach(ip_address("127.0.0.1"), LOOPBACK)
    assert not may_reach(ip_address("10.0.0.1"), LOOPBACK)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("https://example.com/hook?a=b", None),
        ("https://example.com:8443/", None),
        ("https://[2606:4700::1111]/", None),
        ("http://example.com/", "https://"),
        ("ftp://example.com/", "https://"),
        ("file:///etc/passwd", "https://"),
        ("//example.com", "https://"),
        ("https://", "no host"),
        ("https:///path", "no host"),
        ("https://example.com:0/", "a port"),
        ("https://example.com:99999/", "Port"),
        ("https://[::1", "Invalid IPv6"),
        ("https://user:pass@example.com/", "a user"),
        ("https://@example.com/", "a user"),
        ("https://example.com/a b", "spaces"),
        ("https://example.com/\n", "spaces"),
        ("https://exämple.com/", "ASCII"),
        ("https://example.com/" + "a" * 2000, "2000"),
        ("https://127.0.0.1/", "public address"),
        ("https://169.254.169.254/latest/meta-data", "public address"),
        ("https://[::ffff:10.0.0.1]/", "public address"),
    ],
)
def test_a_url_is_refused_for_what_is_wrong_with_it(url: str, fault: str | None) -> None:
    found = url_fault(url)
    assert (found is None) if fault is None else fault in (found or "")


def test_where_the_operator_allows_a_network_it_is_written_with_http_too() -> None:
    assert url_fault("http://127.0.0.1:9000/", LOOPBACK) is None
    assert url_fault("http://10.0.0.1/", LOOPBACK)


class Rebinding(AbstractResolver):
    """Says what a hostile name server says: these addresses for every name."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[Any]:
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET,
                "proto": 0,
                "flags": 0,
            }
            for address in self.addresses
        ]

    async def close(self) -> None: ...


@pytest.fixture
async def asked() -> AsyncIterator[tuple[int, list[str]]]:
    """A server on this machine: its port, and what it was asked for."""
    paths: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response(text="internal")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1], paths
    await runner.cleanup()


async def get(url: str, **options: Any) -> int:
    async with (
        aiohttp.ClientSession(connector=guarded_connector(**options)) as session,
        session.get(url, allow_redirects=False) as answer,
    ):
        return answer.status


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "0"]
)
async def test_nothing_on_this_machine_is_reached_however_it_is_written(
    asked: tuple[int, list[str]], host: str
) -> None:
    port, paths = asked
    with pytest.raises(aiohttp.ClientError):
        await get(f"http://{host}:{port}/")
    assert paths == []


async def test_a_name_that_resolves_inwards_is_refused_and_the_address_not_told(
    asked: tuple[int, list[str]],
) -> None:
    port, paths = asked
    with pytest.raises(aiohttp.ClientConnectorError) as refused:
        await get(f"http://example.com:{port}/", resolver=Rebinding("127.0.0.1"))
    assert isinstance(refused.value.os_error, DestinationRefused)
    assert "127.0.0.1" not in str(refused.value)
    assert paths == []


async def test_of_a_names_addresses_those_allowed_are_tried(asked: tuple[int, list[str]]) -> None:
    port, paths = asked
    url, resolver = f"http://example.com:{port}/hook", Rebinding("10.255.255.1", "127.0.0.1")
    assert await get(url, resolver=resolver, allowed=LOOPBACK) == 200
    assert paths == ["/hook"]
