"""Addresses that processes of a fleet name to each other: one plain host, and a port.

Those who connect read more into an address than it seems to say. ZMQ connects to DESTINATION for
`tcp://SOURCE;DESTINATION`; resolvers take 134744072, 0x08080808 and 010.8.8.8 for numbers of IPv4.
What is checked must be what is dialled, so only one form is taken, and numbers are read alike.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9_.])?"
_V6 = r"[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9._-]{1,64})?"
_PORT = r"[0-9]{1,5}"
_HOST = re.compile(rf"(?P<name>{_NAME})|{_V6}|\[{_V6}\]")
_TCP = re.compile(rf"tcp://({_NAME}|\[{_V6}\]):({_PORT})")
_HTTP = re.compile(rf"https?://({_NAME}|\[{_V6}\])(?::({_PORT}))?(?:/[!-~]*)?")
KV_HOST, EC_HOST = "remote_host", "peer_host"
"""Where an entry of `kv_transfer_params` or `ec_transfer_params` names the host to be asked."""


def is_plain_host(host: object) -> bool:
    """Whether this is one name or IP address in ASCII, and nothing else."""
    found = _HOST.fullmatch(host) if isinstance(host, str) else None
    return found is not None and (bool(found["name"]) or number_of(found[0]) is not None)


def is_tcp(address: str) -> bool:
    """Whether this is tcp://HOST:PORT."""
    return _host_in(_TCP, address) is not None


def host_of(address: str) -> str | None:
    """HOST of http://HOST:PORT/PATH, https:// too, or of tcp://HOST:PORT. None for what is
    neither."""
    return _host_in(_HTTP, address) or _host_in(_TCP, address)


def _host_in(form: re.Pattern[str], address: str) -> str | None:
    found = form.fullmatch(address)
    if found is None or int(found[2] or 0) >= 1 << 16 or not is_plain_host(found[1]):
        return None
    return found[1]


def url_host(url: str) -> str:
    """The host of a URL as it goes to the domain name system, "" if there is none. `ValueError` for
    what is no URL."""
    parts = urlsplit(url)
    host, _ = (parts.hostname or "").encode("idna").decode(), parts.port
    if host and not is_plain_host(host):
        raise ValueError(f"'{parts.netloc[:128]}' is not HOST:PORT")
    return host


def number_of(host: str) -> IPv4Address | IPv6Address | None:
    """The address that a host is as it stands, in all forms that resolvers take for a number. None
    for a name."""
    try:
        return ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return None


def hosts_in(endpoint: dict[str, Any] | None) -> Iterator[tuple[str, object]]:
    """Fields of a worker's `kv_endpoint` or `ec_endpoint` that say which host is asked."""
    for field in (KV_HOST, EC_HOST):
        if endpoint and endpoint.get(field) not in (None, ""):
            yield field, endpoint[field]
