"""A kept connection to a worker, and what can come of asking there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from protocol.errors import UpstreamError
from proxy.relay.data_urls import Body
from proxy.upstream.http1 import EVENTS

_SMALL = 4096


class CallFailed(UpstreamError):
    """A worker that did not answer as it should. `kind` is a word for metrics.

    `sent` is False if the worker cannot have seen the request; `stale` is True if a kept connection
    turned out to be closed already, which is nobody's fault.
    """

    def __init__(
        self, message: str, kind: str, *, sent: bool = True, stale: bool = False, status: int = 502
    ) -> None:
        super().__init__(message)
        self.kind, self.sent, self.stale, self.status = kind, sent, stale, status
        if status == 504:
            self.code = "deadline_exceeded"


@dataclass(frozen=True, slots=True)
class Answer:
    """A worker's whole answer; of an event stream, `body` is what came up to the first event."""

    status: int
    content_type: bytes
    body: bytes
    retry_after: bytes = b""

    @property
    def is_stream(self) -> bool:
        return self.content_type.startswith(EVENTS)


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds to the answer (of a stream: to its first event), seconds between events, and the
    largest answer in bytes that is not a stream."""

    answer_s: float
    stall_s: float
    max_bytes: int


class User(Protocol):
    """Who a connection reports to while it is in use."""

    def feed(self, data: bytes) -> None: ...

    def lost(self) -> None: ...


class Connection(asyncio.Protocol):
    """One connection to a worker, with one user at a time. `released` is called whenever it is free
    for another; `used` once it has been."""

    def __init__(self, url: str, released: Callable[[Connection], None]) -> None:
        self.url = url
        self.idle_since = 0.0
        self.used = False
        self.closed = False
        self.transport: asyncio.Transport
        self._released = released
        self._user: User | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def send(self, user: User, head: bytes, body: Body, size: int) -> None:
        """Send a request of `user`; a large body is not copied."""
        self._user = user
        if size < _SMALL:
            self.transport.write(b"".join((head, *body)))
        else:
            self.transport.writelines((head, *body))

    def data_received(self, data: bytes) -> None:
        if self._user is None:
            self.close()  # nobody asked
        else:
            self._user.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        user, self._user = self._user, None
        if user is not None:
            user.lost()

    def free(self, *, keep: bool) -> None:
        """The user is done with it."""
        self._user = None
        self.used = True
        if keep and not self.closed:
            self._released(self)
        else:
            self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.transport.abort()
