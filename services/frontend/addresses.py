"""Which network addresses media may be fetched from; checked when the connection is made."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

# Not public, though not every version of Python knows so.
_ANYCAST_6TO4 = IPv4Network("192.88.99.0/24")  # RFC 7526: relays into other networks
_DOCUMENTATION = IPv6Network("3fff::/20")  # RFC 9637
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address


class ForbiddenAddress(OSError):
    """The host has no address that may be connected to."""


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """False for private, loopback, link-local, multicast and reserved addresses, also where an
    IPv6 address stands for an IPv4 one.
    """
    if isinstance(address, IPv6Address):
        inner = _embedded(address)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local or address in _DOCUMENTATION:
            return False
    elif address in _ANYCAST_6TO4:
        return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified
    )


def _embedded(address: IPv6Address) -> IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or int(address) >> 32 == 0:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def literal_address(host: str) -> IPv4Address | IPv6Address | None:
    """The address if `host` is one, which no resolver will see."""
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None
