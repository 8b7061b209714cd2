"""A kept connection to a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from proxy.upstream.answer import AnswerHead, Body
from proxy.upstream.http1 import KnownHeads
from proxy.upstream.time_limits import Alarm

_SMALL = 4096  # bytes; joining fewer costs less than writing two buffers


class User(Protocol):
    """Who a connection reports to while it is in use."""

    def feed(self, data: bytes) -> None: ...

    def lost(self) -> None: ...

    def silenced(self) -> None: ...

    def late(self) -> None: ...


class Connection(asyncio.Protocol):
    """One connection to a worker, with one user at a time. `released` is called whenever it is free
    for another; `used` once it has been. `alarm` is the user's, `heads` are those that the worker
    has sent."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        url: str,
        heads: KnownHeads[AnswerHead],
        released: Callable[[Connection], None],
    ) -> None:
        self.url = url
        self.heads = heads
        self._loop = loop
        self.alarm = Alarm(loop, self._late)
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
        if self.closed or self.transport.is_closing():
            self._loop.call_soon(self._gone, user)
        elif size < _SMALL:
            self.transport.write(b"".join((head, *body)))
        else:
            self.transport.writelines((head, *body))

    def _gone(self, user: User) -> None:
        """It was lost before it was used; `connection_lost` may have been called already."""
        if self._user is user:
            self._user = None
            user.lost()

    def data_received(self, data: bytes) -> None:
        if self._user is None:
            self.close()  # no request is open
        else:
            self._user.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        # First: the user frees the connection as it hears of this, and it must not be kept then.
        self.closed = True
        user, self._user = self._user, None
        if user is not None:
            user.lost()
        self.alarm.close()

    def _late(self) -> None:
        if self._user is not None:
            self._user.late()

    def free(self, *, keep: bool) -> None:
        """The user is done with it."""
        self._user = None
        self.alarm.stop()
        self.used = True
        if keep and not self.closed:
            self._released(self)
        else:
            self.close()

    def give_up(self) -> None:
        """The worker says nothing any more."""
        user, self._user = self._user, None
        if user is not None:
            user.silenced()
        self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.alarm.close()
            # Not `close`: what is still to be sent would keep the connection open.
            self.transport.abort()
