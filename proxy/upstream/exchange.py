"""One request and its answer on a kept connection to a worker.

An answer that is an event stream is handed on as whole events, byte for byte, without waking
a task: straight from the worker's connection to the sink.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from protocol.errors import TriptychError
from proxy.upstream.answer import Answer, AnswerLimits, AnswerParser, Body, NotHttp
from proxy.upstream.connection import Connection
from proxy.upstream.failures import SILENT, CallFailed, Refused
from proxy.upstream.sse import MAX_COMMENTS, EventCutter, EventTooLong

_DRAIN_S = 1.0  # for the end of the message, once the end mark has come


class Exchange:
    """To be awaited: `ready` for the answer, of a stream with its first event, then `forward` for
    the rest, which goes to `sink`. Both raise `CallFailed`, the latter also what `sink` makes of an
    event, as a `Refused`. `abort` closes the connection: that tells the worker to stop.

    Class attributes are what every exchange begins with.
    """

    _parser: AnswerParser | None = None
    _events: EventCutter | None = None
    _ended: asyncio.Future[None] | None = None
    _failure: TriptychError | None = None
    _early = b""
    _forwarding = _over = False

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: Connection,
        head: bytes,
        body: Body,
        size: int,
        limits: AnswerLimits,
        sink: Callable[[bytes], None] | None = None,
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._limits = limits
        self._sink = sink
        self.ready: asyncio.Future[Answer] = loop.create_future()
        self._last = loop.time()
        connection.alarm.set(limits.answer_s)
        connection.send(self, head, body, size)

    async def forward(self) -> None:
        """Hand every event after those in the answer to the sink, until the end mark, or until it
        raises `CallFailed` or `Refused`."""
        self._forwarding = True
        # What has come between the answer and this call.
        if self._early and self._sink is not None:
            self._sink(self._early)
            self._early = b""
        # After what has come before it: the client is to have all of that.
        if self._failure is not None:
            raise self._failure
        if not (self._over or self._marked):
            self._ended = self._loop.create_future()
            await self._ended

    def pause(self) -> None:
        """Read no more until `resume`: the client does not keep up."""
        if not self._over and not self._marked:
            # A client that reads slowly is no silence of the worker.
            self._connection.alarm.stop()
            self._connection.transport.pause_reading()

    def resume(self) -> None:
        if not self._over and not self._marked:
            self._last = self._loop.time()
            self._connection.alarm.set(self._limits.stall_s)
            self._connection.transport.resume_reading()

    def abort(self) -> None:
        """Stop, unless the answer has come to its end."""
        if not (self._over or self._marked):
            self._leave(keep=False)

    @property
    def _marked(self) -> bool:
        """Whether the stream's end mark has come."""
        return self._events is not None and self._events.ended

    # What the connection reports.

    def feed(self, data: bytes) -> None:
        self._last = self._loop.time()
        if self._parser is None:
            self._begin(data)
        else:
            self._parse(self._parser, data)

    def _begin(self, data: bytes) -> None:
        """The first bytes: most answers come whole, under a head that has come before."""
        # Parsing costs two microseconds, and most answers of a worker differ in length alone.
        heads = self._connection.heads
        known = heads.find(data)
        if known is not None:
            head, length, begin = known
            if len(data) == begin + length and length <= self._limits.max_bytes:
                self._leave(keep=head.keep)
                if not self.ready.done():
                    body = data[begin:]
                    self.ready.set_result(Answer(200, head.content_type, body, head.retry_after))
                return
        parser = self._parser = AnswerParser()
        self._parse(parser, data)
        parser.learn(data, heads)

    def _parse(self, parser: AnswerParser, data: bytes) -> None:
        try:
            parser.feed(data)
        except NotHttp as error:
            self._fail(str(error), "garbage")
            return
        if parser.is_stream:
            if parser.pieces:
                self._advance(parser)
        elif parser.size > self._limits.max_bytes:
            self._fail("answered with more than is allowed", "too_large")
        if parser.complete:
            self._completed(parser)

    def lost(self) -> None:
        """The connection is gone; where nothing frames the body, that is its end."""
        parser = self._parser
        if parser is None or not parser.status:
            # On its first use a connection cannot have been closed for being idle.
            stale = self._connection.used
            self._fail("closed the connection without an answer", "dropped", stale=stale)
        elif parser.framed or parser.is_stream:
            self._fail("dropped the connection", "dropped")
        else:
            self._completed(parser)

    def silenced(self) -> None:
        """The worker is given up."""
        self._fail("has gone silent", SILENT)

    def late(self) -> None:
        # The alarm is not set for every event: what has come since is counted here.
        idle = self._loop.time() - self._last
        if not self.ready.done():
            self._fail("did not answer in time", "timeout", status=504)
        # The message has not ended within `_DRAIN_S`: the client has all, the connection goes.
        elif self._marked:
            self._leave()
        elif idle < self._limits.stall_s:
            self._connection.alarm.set(self._limits.stall_s - idle)
        else:
            self._fail("stopped in the middle of its stream", "stalled", status=504)

    # What follows from it.

    def _advance(self, parser: AnswerParser) -> None:
        if self._events is None:
            self._events = EventCutter()
        try:
            data = self._events.feed(b"".join(parser.pieces))
        except EventTooLong:
            self._fail("sent an event without an end", "garbage")
            return
        parser.pieces.clear()
        if not data:
            return
        if self._forwarding and self._sink is not None:
            try:
                self._sink(data)
            except (CallFailed, Refused) as failure:
                self._leave(keep=False)
                self._end(failure)
                return
        else:
            self._early += data
            if not self.ready.done():
                self._begin_stream(parser, data)
        if self._events.ended and not parser.complete:
            self._drain()

    def _begin_stream(self, parser: AnswerParser, data: bytes) -> None:
        """Only an event with data is an answer: comments show no more than that the worker lives,
        and another one may still answer."""
        if b"data:" in data:
            self.ready.set_result(parser.answer(self._early))
            self._early = b""
            self._connection.alarm.set(self._limits.stall_s)
        elif len(self._early) > MAX_COMMENTS:
            self._fail("sent comments without an end", "garbage")

    def _drain(self) -> None:
        """The client has all; the connection is worth keeping if the worker ends the message."""
        self._connection.alarm.set(_DRAIN_S)
        self._end(None)

    def _completed(self, parser: AnswerParser) -> None:
        if self._over:
            return
        if parser.is_stream and not self._marked:
            self._fail("ended its stream without the end mark", "cut_short")
            return
        self._leave(keep=parser.keep)
        if parser.is_stream:
            self._end(None)
        elif not self.ready.done():
            self.ready.set_result(parser.answer(b"".join(parser.pieces)))

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
            if self._parser is not None:
                self._parser.let_go()
            self._connection.free(keep=keep)

    def _end(self, failure: TriptychError | None) -> None:
        self._failure = failure
        if self._ended is None or self._ended.done():
            return
        if failure is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(failure)
