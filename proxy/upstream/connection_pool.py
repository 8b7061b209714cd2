"""The way to one worker: its kept connections, and the bytes that go over them."""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from protocol.fleet_key import NO_KEY, FleetKey
from proxy.upstream.answer import Answer, AnswerHead, AnswerLimits, Body, size_of
from proxy.upstream.connection import Connection
from proxy.upstream.exchange import Exchange
from proxy.upstream.failures import CallFailed, no_connection, unconnected
from proxy.upstream.http1 import JSON, KnownHeads, request_head
from proxy.upstream.time_limits import unhurried

# Shorter than servers of ours keep an idle connection. vLLM's close one after 5 s, unless its
# VLLM_HTTP_TIMEOUT_KEEP_ALIVE is set: `ask` makes a new one then.
_KEEP_S = 30.0
_MAX_IDLE = 1024  # connections that are kept to one worker
_KNOWN_HEADS = 32  # heads of answers that are known of one worker
_REFERENCES_OFF_S = 300.0  # then it may have been restarted with a version that takes them


@dataclass
class Traffic:
    """Bodies only. `received`: from clients; `sent`: to workers, again with each further try."""

    # Plain numbers, since two are added to for every call; metrics read them at a scrape.
    received: int = 0
    sent: int = 0


@dataclass(frozen=True)
class _Address:
    host: str
    port: int
    path: str
    context: ssl.SSLContext | None

    @staticmethod
    def of(url: str, tls: ssl.SSLContext | None) -> _Address:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        context = (tls or ssl.create_default_context()) if secure else None
        port = parts.port or (443 if secure else 80)
        return _Address(parts.hostname or "", port, parts.path.rstrip("/"), context)


class ConnectionPool:
    """One worker by its URL. Connections are made as they are needed and kept when idle. `room` is
    what encode calls take, `encode_at_once` of them. Bodies are of one `content_type`."""

    def __init__(
        self,
        url: str,
        connect_timeout_s: float,
        encode_at_once: int,
        traffic: Traffic,
        key: FleetKey = NO_KEY,
        tls: ssl.SSLContext | None = None,
        content_type: bytes = JSON,
    ) -> None:
        self._content_type = content_type
        self._own = "".join(f"{name}: {value}\r\n" for name, value in key.headers.items()).encode()
        self._loop = asyncio.get_running_loop()
        self.url = url
        self.room = asyncio.Semaphore(encode_at_once)
        self._traffic = traffic
        self._closed = False
        self._address = _Address.of(url, tls)
        self._authority = urlsplit(url).netloc.rpartition("@")[2].encode()
        self._connect_timeout = connect_timeout_s
        self._idle: list[Connection] = []
        # Weakly: a connection that has ended need not be taken out.
        self._open: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._heads: KnownHeads[AnswerHead] = KnownHeads(_KNOWN_HEADS)
        self._prefixes: dict[str, bytes] = {}
        self._references_off_until = 0.0

    async def ask(
        self,
        path: str,
        fields: bytes,
        body: Body,
        limits: AnswerLimits,
        sink: Callable[[bytes], None] | None = None,
    ) -> tuple[Exchange, Answer]:
        """POST `body`; `fields` are header lines of this request. Raises `CallFailed`.

        A stream goes on in the exchange, which is the caller's to end, after its first event;
        further events go to `sink`.
        """
        size = size_of(body)
        self._traffic.sent += size
        head = request_head(self._prefix(path), fields, size)
        kept, stale = self._kept(), None
        while True:
            try:
                connection = await self._connect() if kept is None else kept
            except CallFailed:
                # The worker itself has ended, and the request may be what it has ended by.
                if stale is not None:
                    raise stale from None
                raise
            exchange = Exchange(self._loop, connection, head, body, size, limits, sink)
            try:
                return exchange, await exchange.ready
            except CallFailed as failure:
                if kept is None or not failure.stale:
                    raise
                # A new one next, not another kept one: all of those may be as stale.
                kept, stale = None, failure  # the worker closed it while it was idle
            except BaseException:
                exchange.abort()
                raise

    def takes_references(self, now: float) -> bool:
        """Whether media may be named by hash here, instead of being sent."""
        return now >= self._references_off_until

    def refuses_references(self, now: float) -> None:
        """It has refused a request that it took with its media; ask again later."""
        self._references_off_until = now + _REFERENCES_OFF_S

    def give_up(self) -> None:
        """The worker has been silent for too long: end what it was asked."""
        for connection in tuple(self._open):
            connection.give_up()
        self._idle.clear()

    def close(self) -> None:
        """Close the idle connections, and each that is in use once it is free."""
        self._closed = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _prefix(self, path: str) -> bytes:
        prefix = self._prefixes.get(path)
        if prefix is None:
            line = f"POST {self._address.path}{path} HTTP/1.1\r\n".encode()
            prefix = line + b"host: " + self._authority + b"\r\n"
            prefix += b"content-type: " + self._content_type + b"\r\n" + self._own
            self._prefixes[path] = prefix
        return prefix

    def _kept(self) -> Connection | None:
        oldest = self._loop.time() - _KEEP_S
        while self._idle:
            # The one that was used last: the rest may get old, and are closed then.
            connection = self._idle.pop()
            if not connection.closed and connection.idle_since >= oldest:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        address = self._address
        try:
            connecting = self._loop.create_connection(
                lambda: Connection(self._loop, self.url, self._heads, self._release),
                address.host,
                address.port,
                ssl=address.context,
            )
            _, connection = await unhurried(connecting, self._connect_timeout)
        except TimeoutError:
            raise no_connection(self.url) from None
        except OSError as error:
            raise unconnected(self.url, error) from None
        self._open.add(connection)
        return connection

    def _release(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= _MAX_IDLE:
            connection.close()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
