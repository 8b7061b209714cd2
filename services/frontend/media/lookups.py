"""Host names to addresses, in threads that nothing else waits for, and which of these media may be
fetched from: checked when the connection is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

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
    # Below 2**32 are IPv4-compatible addresses (RFC 4291, 2.5.5.1), `::` and `::1`.
    if address in _NAT64 or int(address) >> 32 == 0:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def literal_address(host: str) -> IPv4Address | IPv6Address | None:
    """The address if `host` is one, which no resolver will see."""
    try:
        # A zone such as %eth0 says over which link, and changes nothing about what it is.
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None


_THREADS = 32  # threads that may hang in the resolver at a time
_PER_TENANT = 4  # look-ups at a time
_PER_ADDRESS = 16  # a client may give itself any number of names
_KEEP_S = 10.0  # from the check of a name to its connection, redirects included
_MOST_KEPT = 1024
_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


@dataclass(frozen=True)
class Caller:
    """Who asks: the address that a request comes from, and the tenant that it names there."""

    address: str = ""
    tenant: str = ""


ANONYMOUS = Caller()


@dataclass
class _Slots:
    """`users`: look-ups that have a turn or wait for one."""

    left: asyncio.Semaphore
    users: int = 0


class LookUps(AbstractResolver):
    """A name server may let each look-up wait for many seconds, and no thread can be called back.
    So every tenant has a few at once, and every address some more, until their threads are free
    again, however many are given up.

    With `public_only` addresses that are not public are left out. The connection goes to what was
    checked, so a name that changes its address in between gains nothing.
    """

    def __init__(self, *, public_only: bool) -> None:
        self._public_only = public_only
        self._pool = ThreadPoolExecutor(_THREADS, "lookup")
        self._slots: dict[tuple[str, ...], _Slots] = {}
        self._kept: OrderedDict[str, tuple[float, list[ResolveResult]]] = OrderedDict()

    async def find(self, host: str, port: int, caller: Caller = ANONYMOUS) -> None:
        """Look a name up for a caller, so that it is at hand when the connection is made. `OSError`
        if it has no address, `UnicodeError` if it is none."""
        if self._known(host) is None:
            self._keep(host, await self._ask(host, port, caller))

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """As aiohttp asks. `ForbiddenAddress` if the host has none that may be connected to."""
        known = self._known(host)
        found = known if known is not None else await self._ask(host, port, ANONYMOUS)
        allowed = [
            result
            for result in found
            if not self._public_only or is_public(ip_address(result["host"].partition("%")[0]))
        ]
        if not allowed:
            raise ForbiddenAddress(f"{host} has no public address (--allow-private-media)")
        # Kept for any port: the same host is often asked for on both 80 and 443.
        return [ResolveResult(**{**result, "port": port}) for result in allowed]

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _known(self, host: str) -> list[ResolveResult] | None:
        until, found = self._kept.get(host, (0.0, []))
        return found if time.monotonic() < until else None

    def _keep(self, host: str, found: list[ResolveResult]) -> None:
        self._kept[host] = time.monotonic() + _KEEP_S, found
        self._kept.move_to_end(host)
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)

    async def _ask(self, host: str, port: int, caller: Caller) -> list[ResolveResult]:
        # The narrow one first: who waits for it takes nothing from the others of the address.
        tenant, address = (caller.address, caller.tenant), (caller.address,)
        await self._take(tenant, _PER_TENANT)
        try:
            await self._take(address, _PER_ADDRESS)
        except BaseException:
            self._give(tenant)
            raise
        loop = asyncio.get_running_loop()

        def over(_: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before the thread
                loop.call_soon_threadsafe(self._give, tenant)
                loop.call_soon_threadsafe(self._give, address)

        asked = self._pool.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        asked.add_done_callback(over)
        answers = await asyncio.wrap_future(asked)
        return [_result(host, answer) for answer in answers]

    async def _take(self, who: tuple[str, ...], most: int) -> None:
        slots = self._slots.setdefault(who, _Slots(asyncio.Semaphore(most)))
        slots.users += 1
        try:
            await slots.left.acquire()
        except BaseException:
            self._leave(who)
            raise

    def _give(self, who: tuple[str, ...]) -> None:
        self._slots[who].left.release()
        self._leave(who)

    def _leave(self, who: tuple[str, ...]) -> None:
        slots = self._slots[who]
        slots.users -= 1
        if not slots.users:
            del self._slots[who]


def _result(host: str, answer: Any) -> ResolveResult:
    family, _, proto, _, address = answer
    scope = f"%{address[3]}" if family == socket.AF_INET6 and address[3] else ""
    return ResolveResult(
        hostname=host,
        host=f"{address[0]}{scope}",
        port=address[1],
        family=family,
        proto=proto,
        flags=_NUMERIC,
    )
