"""One request and its answer on a kept connection to a worker.

An answer that is an event stream is handed on as whole events, byte for byte, without waking
anybody: straight from the worker's connection to the sink.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools

from proxy.upstream.answer import Answer, AnswerLimits, Body
from proxy.upstream.connection import Connection
from proxy.upstream.failures import SILENT, CallFailed
from proxy.upstream.http1 import EVENTS
from proxy.upstream.sse import EventCutter, EventTooLong
from services.http.listener import MAX_HEAD

_DRAIN_S = 1.0
_FRAMING = (b"content-length", b"transfer-encoding")


class Exchange:
    """To be awaited: `ready` for the answer, of a stream with its first event, then `forward` for
    the rest. Both raise `CallFailed`. `abort` closes the connection: that tells the worker to stop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: Connection,
        head: bytes,
        body: Body,
        size: int,
        limits: AnswerLimits,
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._limits = limits
        self._parser: Any = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._size = self._status = self._head_size = 0
        self._content_type = self._retry_after = b""
        self._framed = self._complete = self._keep = self._over = False
        self._events: EventCutter | None = None
        self._early = b""
        self._sink: Callable[[bytes], None] | None = None
        self.ready: asyncio.Future[Answer] = loop.create_future()
        self._ended: asyncio.Future[None] | None = None
        self._failure: CallFailed | None = None
        self._last = loop.time()
        self._timer = loop.call_later(limits.answer_s, self._late)
        connection.send(self, head, body, size)

    async def forward(self, sink: Callable[[bytes], None]) -> None:
        """Hand every event after those in the answer to `sink`, until the end mark, or until it
        raises `CallFailed`."""
        self._sink = sink
        if self._early:
            sink(self._early)
            self._early = b""
        if self._failure is not None:
            raise self._failure
        if not (self._over or self._marked):
            self._ended = self._loop.create_future()
            await self._ended

    def pause(self) -> None:
        """Read no more until `resume`: the client does not keep up."""
        if not self._over and not self._marked:
            self._timer.cancel()
            self._connection.transport.pause_reading()

    def resume(self) -> None:
        if not self._over and not self._marked:
            self._last = self._loop.time()
            self._timer = self._loop.call_later(self._limits.stall_s, self._late)
            self._connection.transport.resume_reading()

    def abort(self) -> None:
        """Stop, unless the answer has come to its end."""
        if not self._marked:
            self._leave(keep=False)

    @property
    def _marked(self) -> bool:
        """Whether the stream's end mark has come."""
        return self._events is not None and self._events.ended

    # What the connection reports.

    def feed(self, data: bytes) -> None:
        self._last = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("answered with something that is not HTTP", "garbage")
            return
        if not self._status:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD:
                self._fail("sent headers without an end", "garbage")
        elif self._pieces and self._events is not None:
            self._advance(self._events)
        elif self._size > self._limits.max_bytes and self._events is None:
            self._fail("answered with more than is allowed", "too_large")
        if self._complete:
            self._completed()

    def lost(self) -> None:
        """The connection is gone; where nothing frames the body, that is its end."""
        if not self._status:
            stale = self._connection.used
            self._fail("closed the connection without an answer", "dropped", stale=stale)
        elif self._framed or self._events is not None:
            self._fail("dropped the connection", "dropped")
        else:
            self._completed()

    def silenced(self) -> None:
        """The worker is given up."""
        self._fail("has gone silent", SILENT)

    # What the parser reports.

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self._content_type = value.lower()
        elif name in _FRAMING:
            self._framed = True
        elif name == b"retry-after":
            self._retry_after = value

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._status == 200 and self._content_type.startswith(EVENTS):
            self._events = EventCutter()

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._complete = self._status >= 200
        self._keep = self._framed and self._parser.should_keep_alive()

    # What follows from it.

    def _advance(self, events: EventCutter) -> None:
        try:
            data = events.feed(b"".join(self._pieces))
        except EventTooLong:
            self._fail("sent an event without an end", "garbage")
            return
        self._pieces.clear()
        if not data:
            return
        if self._sink is not None:
            try:
                self._sink(data)
            except CallFailed as failure:
                self._leave(keep=False)
                self._end(failure)
                return
        else:
            self._early += data
            if not self.ready.done() and b"data:" in self._early:
                self.ready.set_result(self._answer(self._early))
                self._early = b""
        if events.ended and not self._complete:
            self._drain()

    def _drain(self) -> None:
        """The client has all; the connection is worth keeping if the worker ends the message."""
        self._timer.cancel()
        self._timer = self._loop.call_later(_DRAIN_S, self._leave)
        self._end(None)

    def _completed(self) -> None:
        if self._over:
            return
        if self._events is not None and not self._events.ended:
            self._fail("ended its stream without the end mark", "cut_short")
            return
        self._leave(keep=self._keep)
        if self._events is not None:
            self._end(None)
        elif not self.ready.done():
            self.ready.set_result(self._answer(b"".join(self._pieces)))

    def _late(self) -> None:
        idle = self._loop.time() - self._last
        if not self.ready.done():
            self._fail("did not answer in time", "timeout", status=504)
        elif idle < self._limits.stall_s:
            self._timer = self._loop.call_later(self._limits.stall_s - idle, self._late)
        else:
            self._fail("stopped in the middle of its stream", "stalled", status=504)

    def _fail(self, text: str, kind: str, *, stale: bool = False, status: int = 502) -> None:
        if self._over:
            return
        self._leave(keep=False)
        failure = CallFailed(f"{self._connection.url} {text}", kind, stale=stale, status=status)
        if not self.ready.done():
            self.ready.set_exception(failure)
        elif not self._marked:
            self._end(failure)

    def _leave(self, keep: bool = False) -> None:
        if not self._over:
            self._over = True
            self._timer.cancel()
            self._parser = None  # it refers to this exchange: a cycle would wait for the collector
            self._connection.free(keep=keep)

    def _end(self, failure: CallFailed | None) -> None:
        self._failure = failure
        if self._ended is None or self._ended.done():
            return
        if failure is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(failure)

    def _answer(self, body: bytes) -> Answer:
        return Answer(self._status, self._content_type, body, self._retry_after)
