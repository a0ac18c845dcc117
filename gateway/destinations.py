"""Where this house sends a request whose address somebody else has written: public addresses alone.

Such a request comes from inside our network, so it must not reach what only we can reach: metadata services
of clouds, databases, workers. The check is at the socket, of the very address that is connected to: a name
that resolves to something else the next time gains nothing, and an address written as digits passes it too.

Callers follow no redirects (``allow_redirects=False``) or check each, and use no proxy: that would connect in
our place.
"""

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

URL_CHARACTERS_MAX: Final = 2000

_REFUSED: Final = "it has no public address"  # which one it has is not for who wrote the URL to know
# Networks that carry an IPv4 address in their last 32 bits: what is reached is that.
_CARRIERS: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/96"), IPv6Network("::/96"))


class DestinationRefused(OSError):
    """The address is not one we connect to. While connecting, aiohttp puts it into a ClientConnectorError."""


def is_public(address: Address) -> bool:
    """Whether anybody on the internet reaches the same there. Addresses that carry another go by that."""
    carried = _carried(address) if isinstance(address, IPv6Address) else None
    if carried is not None:
        return is_public(carried)
    return address.is_global and not address.is_multicast


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
        if not may_reach(ip_address(place[0].partition("%")[0]), allowed):
            raise DestinationRefused(_REFUSED)
        return socket.socket(family, kind, protocol)

    return aiohttp.TCPConnector(socket_factory=make_socket, **options)


def _written(host: str) -> Address | None:
    """The address that a host is written as; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def _carried(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that this one stands for: mapped, translated, or the far end of a tunnel."""
    if any(address in network for network in _CARRIERS):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (None if teredo is None else teredo[1])
