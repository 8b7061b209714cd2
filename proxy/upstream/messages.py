"""Messages to servers of ours: msgpack both ways, whole answers, on connections of the hot path."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping

from protocol.errors import DeadlineExceeded
from protocol.fleet_key import NO_KEY, FleetKey
from protocol.generate import MSGPACK
from proxy.upstream.answer import Answer, AnswerLimits
from proxy.upstream.connection_pool import ConnectionPool, Traffic
from proxy.upstream.failures import CallFailed

_MAX_ANSWER = 1 << 28
_FIELDS = f"accept: {MSGPACK}\r\n".encode()


class Messages:
    """One pool of connections for each server."""

    # A request asks its master before anything else, and through aiohttp that takes longer than the
    # request's other calls together.

    def __init__(
        self,
        connect_timeout_s: float,
        authorization: str = "",
        key: FleetKey = NO_KEY,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._key, self._tls = key, tls
        given = f"authorization: {authorization}\r\n".encode() if authorization else b""
        self._fields = _FIELDS + given
        self._traffic = Traffic()
        self._pools: dict[str, ConnectionPool] = {}

    async def post(
        self, url: str, path: str, body: bytes, deadline: float, trace: Mapping[str, str]
    ) -> Answer:
        """What `url` answers, errors too; `trace`: headers that tell of the trace of the
        request that it is for. Raises `CallFailed`, or `DeadlineExceeded` at `deadline`
        (`time.monotonic`)."""
        left_s = deadline - time.monotonic()
        limits = AnswerLimits(left_s, left_s, _MAX_ANSWER)
        if left_s <= 0.0:
            raise DeadlineExceeded(f"{url} was not called: the request's deadline has passed")
        try:
            fields = self._fields
            for name, value in trace.items():
                fields += f"{name}: {value}\r\n".encode()
            exchange, answer = await self._of(url).ask(path, fields, (body,), limits)
        except CallFailed:
            # The request's own time is up: a `CallFailed` would speak against its master.
            if time.monotonic() >= deadline:
                raise DeadlineExceeded(
                    f"{url} did not answer before the request's deadline"
                ) from None
            raise
        exchange.abort()
        return answer

    def give_up(self, url: str) -> None:
        """The server has been silent for too long: end what it was asked."""
        if url in self._pools:
            self._pools[url].give_up()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def _of(self, url: str) -> ConnectionPool:
        pool = self._pools.get(url)
        if pool is None:
            pool = self._pools[url] = ConnectionPool(
                url, self._connect_timeout_s, 1, self._traffic, self._key, self._tls,
                MSGPACK.encode(),
            )  # fmt: skip
        return pool
