"""Where workers may be that register: each address that they name is dialled as it is given.

A process that registers decides what masters, proxies and workers connect to, and where users'
requests go. Without a fleet key that is anyone who reaches the master.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator
from ipaddress import ip_address, ip_network

from protocol.addresses import host_of, hosts_in, is_plain_host, number_of
from protocol.errors import InvalidRequest, Unavailable
from protocol.flag_lists import ANY_NETWORK, Network, parse_networks
from protocol.kv_events import EventSource
from protocol.registry import InstanceInfo
from services.master.config import MasterConfig
from services.master.fleet.validation import check_url

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
        await self.check(info.url, info.events, info.ec_zmq_addrs)
        for name, endpoint in (
            ("kv_endpoint", info.kv_endpoint),
            ("ec_endpoint", info.ec_endpoint),
        ):
            for field, host in hosts_in(endpoint):
                await self._check(f"{name}.{field}", str(host), str(host))

    async def check(
        self, url: str, events: Iterable[EventSource], pushed_to: Iterable[str] = ()
    ) -> None:
        """`InvalidRequest` names the field and the address that is outside, or is none."""
        if self._networks is None:
            return
        check_url(url)
        for field, address in _addresses(url, events, pushed_to):
            # ZMQ also dials ipc:// and the like, which are this machine's own.
            await self._check(field, address, host_of(address))

    async def _check(self, field: str, address: str, host: str | None) -> None:
        if self._networks is None:
            return
        if host is None or not is_plain_host(host):
            raise self._outside(field, address, "it is no plain HOST:PORT of http:// or tcp://")
        number = number_of(host)
        # Numbers before names: resolvers take 134744072 for 8.8.8.8.
        if number is None and "." not in host:
            return
        for found in (str(number),) if number is not None else await self._looked_up(field, host):
            if not self._holds(found):
                raise self._outside(field, address, f"{found} is in none of them")

    def _holds(self, found: str) -> bool:
        ip = ip_address(found)
        # ::ffff:a.b.c.d is the IPv4 address to those who connect, and no network of IPv6 has it.
        mapped = getattr(ip, "ipv4_mapped", None)
        return any((mapped or ip) in network for network in self._networks or ())

    async def _looked_up(self, field: str, host: str) -> list[str]:
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
    try:
        return (*map(ip_network, _NEAR), ip_network(config.host.strip("[]")))
    except ValueError:
        return tuple(map(ip_network, _NEAR))


def _addresses(
    url: str, events: Iterable[EventSource], pushed_to: Iterable[str]
) -> Iterator[tuple[str, str]]:
    yield "url", url
    for source in events:
        yield "events", source.endpoint
        if source.replay:
            yield "events", source.replay
    for address in pushed_to:
        yield "ec_zmq_addrs", address
