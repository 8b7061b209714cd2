"""Where workers may be that register: their URLs and event endpoints are dialled as they are given.

A process that registers decides what masters, proxies and workers connect to, and where users'
requests go. Without a fleet key that is anyone who reaches the master.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from protocol.errors import InvalidRequest, Unavailable
from protocol.flag_lists import ANY_NETWORK, Network, parse_networks
from protocol.kv_events import EventSource
from protocol.registry import InstanceInfo
from services.master.config import MasterConfig

_NEAR = (
    "127.0.0.0/8", "::1", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10",
    "fc00::/7", "fe80::/10",
)  # fmt: skip
_AT_ONCE = 16
_WAITING = 256
_LOOKUP_S = 2.0


class WorkerNetworks:
    """Checks what registers. A name is resolved, and all its addresses count; a name without a dot
    is one of the local network's own (a container's, a host's), and is taken as it is."""

    def __init__(self, config: MasterConfig, *, keyed: bool) -> None:
        """`keyed`: callers have the fleet key, so that they may be anywhere unless a flag says
        where."""
        self.named = bool(config.allowed_worker_networks)
        self._networks = _allowed(config, keyed=keyed)
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    async def check_worker(self, info: InstanceInfo) -> None:
        """As `check`, of a worker that registers."""
        await self.check(info.url, info.events)

    async def check(self, url: str, events: list[EventSource]) -> None:
        """`InvalidRequest` names the field and the address that is outside; what is no address is
        for others to refuse."""
        if self._networks is None:
            return
        for field, address in _addresses(url, events):
            await self._check(field, address)

    async def _check(self, field: str, address: str) -> None:
        # ZMQ also dials ipc:// and the like, which are this machine's own.
        if not address.startswith(("http://", "https://", "tcp://")) and "://" in address:
            raise self._outside(field, address, "only tcp:// is a network's")
        host = _host(address)
        if host is None or not ("." in host or ":" in host):
            return
        for found in await self._resolved(field, host):
            if not self._holds(found):
                raise self._outside(field, address, f"{found} is in none of them")

    def _holds(self, found: str) -> bool:
        ip = ip_address(found)
        # ::ffff:a.b.c.d is the IPv4 address to those who connect, and no network of IPv6 has it.
        mapped = getattr(ip, "ipv4_mapped", None)
        return any((mapped or ip) in network for network in self._networks or ())

    async def _resolved(self, field: str, host: str) -> list[str]:
        try:
            return [str(ip_address(host.partition("%")[0]))]
        except ValueError:
            pass
        # Any caller may bring names: lookups that hang must not pile up without bound.
        if self._waiting >= _WAITING:
            raise Unavailable("too many workers with names register at once", retry_after_s=1.0)
        self._waiting += 1
        try:
            async with self._turns, asyncio.timeout(_LOOKUP_S):
                found = await asyncio.get_running_loop().getaddrinfo(
                    host, None, type=socket.SOCK_STREAM
                )
        except (OSError, UnicodeError):  # TimeoutError is an OSError
            raise self._outside(field, host, "the name has no address here") from None
        finally:
            self._waiting -= 1
        return [str(one[4][0]).partition("%")[0] for one in found]

    def _outside(self, field: str, address: str, reason: str) -> InvalidRequest:
        return InvalidRequest(
            f"{field}: '{address[:256]}' is outside the networks that workers may be in"
            f" (--allowed-worker-networks): {reason}",
            param=field,
            code="network_not_allowed",
        )


def _allowed(config: MasterConfig, *, keyed: bool) -> tuple[Network, ...] | None:
    """None for any."""
    text = config.allowed_worker_networks
    if text:
        return None if text.strip().lower() == ANY_NETWORK else parse_networks(text)
    if keyed:
        return None
    own = _host(f"tcp://{config.host}:0") or ""
    try:
        return (*map(ip_network, _NEAR), ip_network(own))
    except ValueError:
        return tuple(map(ip_network, _NEAR))


def _addresses(url: str, events: list[EventSource]) -> Iterator[tuple[str, str]]:
    yield "url", url
    for source in events:
        yield "events", source.endpoint
        if source.replay:
            yield "events", source.replay


def _host(address: str) -> str | None:
    """None if there is none, or no name that the domain name system has."""
    try:
        host = urlsplit(address).hostname or ""
        host.encode("idna")
    except ValueError:
        return None
    return host or None
