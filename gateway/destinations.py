"""Where this house sends a request whose address somebody else has written: public addresses alone.

Such a request comes from inside our network, so it must not reach what only we can reach: metadata services
of clouds, databases, workers. The check is at the socket, of the very address that is connected to: a name
that resolves to something else the next time gains nothing, and an address written as digits passes it too.

Callers follow no redirects (``allow_redirects=False``) or check each, and use no proxy: that would connect in
our place.
"""

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

URL_CHARACTERS_MAX: Final = 2000

_REFUSED: Final = "it has no public address"  # which one it has is not for who wrote the URL to know
# IPv6 that carries an address of IPv4 to a translator: it is judged by that one.
_NAT64: Final = ip_network("64:ff9b::/96")
# All that is handed out to hosts of IPv6. Whatever else there is leads elsewhere, or wraps what does.
_UNICAST: Final = ip_network("2000::/3")
# What `is_global` lets pass, here or in other versions of it.
_KEPT_APART: Final = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # a cloud's host agent, on a public address
            "192.0.0.0/24",  # protocols' own
            "192.88.99.0/24",  # relays of 6to4
            "2001::/23",  # protocols' own; Teredo, which wraps IPv4
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, which wraps IPv4
            "3fff::/20",  # documentation
        ),
    )
)


class DestinationRefused(OSError):
    """The address is not one we connect to. While connecting, aiohttp puts it into a ClientConnectorError."""


def is_public(address: str | Address) -> bool:
    """Whether an address, also written as the system's resolver does, is of a host on the public Internet.

    Private, loopback, link-local (there clouds keep credentials), shared (CGNAT), multicast, reserved and
    unspecified addresses are not, nor what they are wrapped in.
    """
    read = _written(address) if isinstance(address, str) else address
    if isinstance(read, IPv6Address):
        if read.ipv4_mapped is not None:
            read = read.ipv4_mapped
        elif read in _NAT64:
            read = IPv4Address(int(read) & 0xFFFF_FFFF)
        elif read not in _UNICAST:
            return False
    if read is None or read.is_multicast or read.is_reserved:
        return False
    return read.is_global and not any(read in network for network in _KEPT_APART)


def may_reach(address: Address, allowed: Sequence[Network] = ()) -> bool:
    """Whether it is public, or within a network that the operator allows."""
    return is_public(address) or any(address in network for network in allowed)


def url_fault(url: str, allowed: Sequence[Network] = ()) -> str | None:
    """Why nothing is sent to this URL; None where that is for its addresses to say, once they are known.

    Args:
        url: written by somebody else.
        allowed: networks of the operator's; where there are any, plain http is taken too.
    """
    if len(url) > URL_CHARACTERS_MAX or not url.isascii() or any(c <= " " or c == "\x7f" for c in url):
        return f"it has spaces or letters beyond ASCII, or more than {URL_CHARACTERS_MAX} characters"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme != "https" and not (parts.scheme == "http" and allowed):
        return "it does not begin with https://"
    if not host or port == 0:
        return "it names no host, or a port that is none"
    if parts.username is not None or parts.password is not None:
        return "it carries a user or a password"
    literal = _written(host)
    return None if literal is None or may_reach(literal, allowed) else _REFUSED


def guarded_connector(allowed: Sequence[Network] = (), **options: Any) -> aiohttp.TCPConnector:
    """A connector whose sockets go to public addresses and those allowed; options are aiohttp's own."""

    def make_socket(found: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, place = found
        address = _written(place[0])
        if address is None or not may_reach(address, allowed):
            raise DestinationRefused(_REFUSED)
        return socket.socket(family, kind, protocol)

    return aiohttp.TCPConnector(socket_factory=make_socket, **options)


def _written(host: str) -> Address | None:
    """The address that a host is written as; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
