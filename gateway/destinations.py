"""Which addresses a client may have this house connect to: those of the public Internet, and no others."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

# IPv6 that carries an address of IPv4 to a translator: it is judged by that one.
_NAT64: Final = ip_network("64:ff9b::/96")
# All that is handed out to hosts of IPv6. Whatever else there is leads elsewhere, or wraps what does.
_UNICAST: Final = ip_network("2000::/3")
# What `is_global` lets pass, here or in other versions of it.
_REFUSED: Final = tuple(
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


def is_public(address: str) -> bool:
    """Whether an address, written as the system's resolver does, is of a host on the public Internet.

    Private, loopback, link-local (there clouds keep credentials), shared (CGNAT), multicast, reserved and
    unspecified addresses are not, nor what they are wrapped in.
    """
    try:
        read = ip_address(address)
    except ValueError:
        return False
    if isinstance(read, IPv6Address):
        if read.ipv4_mapped is not None:
            read = read.ipv4_mapped
        elif read in _NAT64:
            read = IPv4Address(int(read) & 0xFFFF_FFFF)
        elif read not in _UNICAST:
            return False
    kept_apart = read.is_multicast or read.is_reserved or any(read in network for network in _REFUSED)
    return read.is_global and not kept_apart
