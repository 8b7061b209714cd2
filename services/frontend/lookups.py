"""Host names to addresses, in threads that nothing else waits for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from services.frontend.addresses import ForbiddenAddress, is_public

_THREADS = 32
_PER_CALLER = 4
_KEEP_S = 10.0
_MOST_KEPT = 1024
_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


@dataclass
class _Caller:
    """`users`: look-ups that have a turn or wait for one."""

    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PER_CALLER))
    users: int = 0


class LookUps(AbstractResolver):
    """A name server may let each look-up wait for many seconds, and no thread can be called back.
    So every caller has a few at once, until their threads are free again, however many it gives up.

    With `public_only` addresses that are not public are left out. The connection goes to what was
    checked, so a name that changes its address in between gains nothing.
    """

    def __init__(self, *, public_only: bool) -> None:
        self._public_only = public_only
        self._pool = ThreadPoolExecutor(_THREADS, "lookup")
        self._callers: dict[str, _Caller] = {}
        self._kept: OrderedDict[str, tuple[float, list[ResolveResult]]] = OrderedDict()

    async def find(self, host: str, port: int, caller: str) -> None:
        """Look a name up for a caller, so that it is at hand when the connection is made. `OSError`
        if it has no address, `UnicodeError` if it is none."""
        if self._known(host) is None:
            self._keep(host, await self._ask(host, port, caller))

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """As aiohttp asks. `ForbiddenAddress` if the host has none that may be connected to."""
        known = self._known(host)
        found = known if known is not None else await self._ask(host, port, "")
        allowed = [
            result
            for result in found
            if not self._public_only or is_public(ip_address(result["host"].partition("%")[0]))
        ]
        if not allowed:
            raise ForbiddenAddress(f"{host} has no public address (--allow-private-media)")
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

    async def _ask(self, host: str, port: int, caller: str) -> list[ResolveResult]:
        here = self._callers.setdefault(caller, _Caller())
        here.users += 1
        try:
            await here.turns.acquire()
        except BaseException:
            self._left(caller)
            raise
        loop = asyncio.get_running_loop()

        def over(_: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before the thread
                loop.call_soon_threadsafe(self._free, caller)

        asked = self._pool.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        asked.add_done_callback(over)
        answers = await asyncio.wrap_future(asked)
        return [_result(host, answer) for answer in answers]

    def _free(self, caller: str) -> None:
        self._callers[caller].turns.release()
        self._left(caller)

    def _left(self, caller: str) -> None:
        here = self._callers[caller]
        here.users -= 1
        if not here.users:
            del self._callers[caller]


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
