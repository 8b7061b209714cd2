"""The client's side of the hot path, on the listener that FastAPI shares.

A connection belongs to uvicorn except while a request for a relayed route is on it: such a request
never becomes an ASGI call. Which it is shows in its first bytes.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from protocol.errors import InvalidRequest, TriptychError
from protocol.openai import CHAT_PATH, COMPLETIONS_PATH
from proxy.relay.entry import Entry
from proxy.relay.hot_path import HotPath
from proxy.relay.request import ClientRequest
from proxy.relay.request_parser import RequestParser
from proxy.relay.response import ClientResponse
from proxy.upstream.exchange import Exchange
from proxy.upstream.http1 import CONTINUE
from services.http.bodies import Claim
from services.http.listener import Listener, Pace, TooSlow, http_response

_ROUTES = tuple(
    f"POST {path}{end}".encode() for path in (CHAT_PATH, COMPLETIONS_PATH) for end in " ?"
)
_LONGEST = max(map(len, _ROUTES))
_LARGE = 1 << 20
_AT_ONCE = 1 << 19  # bytes claimed ahead: counting each piece costs more than taking it
_COUNTED = 1 << 16  # smaller bodies are bounded by the number of requests


class ClientConnection(Listener):
    """One client connection. `_places` is how many requests it has counted in at the hot path: the
    one under way, and any whose large answer the client has not taken yet."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        hot: HotPath,
        entry: Entry | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._hot = hot
        self._entry = entry
        self._first = b""
        self._reader: RequestParser | None = None
        self._task: asyncio.Task[None] | None = None
        self._reply: ClientResponse | None = None
        self._source: Exchange | None = None
        self._paused = False
        self._ended_by: TriptychError | None = None
        self._places = 0
        self._claim: Claim | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0

    @property
    def _cold(self) -> bool:
        """Whether a request of uvicorn's own is under way."""
        return self._cold_reading or self._answering

    @property
    def reading(self) -> bool:
        hot = self._reader is not None and self._reply is None
        return hot or bool(self._first) or super().reading

    # What the transport reports.

    def data_received(self, data: bytes) -> None:
        self._fresh = False
        if self._reader is not None:
            self._read(self._reader, data)
            return
        if self._first:
            data, self._first = self._first + data, b""
        if self._cold or not self._hot.takes_any:
            super().data_received(data)
        else:
            self._begin(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._leave()
        self._let_go()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        self._paused = True
        if self._source is not None:
            self._source.pause()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._paused = False
        if self._source is not None:
            self._source.resume()
        self._leave(keep=int(self._reader is not None and self._reader.admitted))
        super().resume_writing()

    def shutdown(self) -> None:
        if self._reply is not None:
            self._reply.keep_alive = False
        elif self._reader is None:
            super().shutdown()

    def end(self, error: TriptychError) -> None:
        if self._task is not None:
            self._ended_by = error
            self._task.cancel()
        elif self._reader is not None:
            self._turn_away(self._reader, error)
            self.close()
        else:
            super().end(error)

    # A request's way in.

    def _begin(self, data: bytes) -> None:
        """The first bytes of a request: hot, cold, or too few to tell."""
        self._unset_keepalive_if_required()
        data = data.lstrip(b"\r\n")  # some clients send an empty line too many
        if data.startswith(_ROUTES):
            keep_raw = not self._hot.takes_all
            self._reader = RequestParser(self._hot.max_body_bytes, keep_raw=keep_raw)
            self._begin_reading()
            self._read(self._reader, data)
        elif len(data) < _LONGEST and any(route.startswith(data) for route in _ROUTES):
            self._first = data
            self._begin_reading()
            self._watch_reading()
        else:
            super().data_received(data)

    def _read(self, reader: RequestParser, data: bytes) -> None:
        if self._reply is not None:
            self._reply.keep_alive = False  # pipelined: the client asks again on a new connection
            return
        self._read_size += len(data)
        try:
            reader.feed(data)
            if reader.size > _COUNTED and not reader.turned_away:
                self._hold(reader)
            if reader.headers_complete and not (reader.admitted or reader.turned_away):
                self._enter(reader)
        except TriptychError as error:
            self._turn_away(reader, error)
        if reader.complete and not reader.turned_away:
            self._complete(reader)
        elif reader.complete or reader.overflowing:
            self.close()
        else:
            self._watch_reading()

    def _enter(self, reader: RequestParser) -> None:
        """Counted from its headers on: a body takes memory while it arrives."""
        if self._entry is not None:
            self._entry.check(reader.headers)
        self._hot.enter()
        self._places += 1
        reader.admitted = True
        if reader.expects_continue and not reader.complete:
            self.transport.write(CONTINUE)

    def _hold(self, reader: RequestParser) -> None:
        """Count a large body's bytes until its request is over: another attempt may need them."""
        if self._claim is None:
            self._claim = self._hot.bodies.open(self._give_up)
        if reader.size > self._claim.size:
            self._claim.add(max(_AT_ONCE, reader.size - self._claim.size))
        else:
            self._claim.progressed()
        if reader.complete:
            self._claim.complete()

    def _give_up(self) -> None:
        """The body has stalled, and others need the room."""
        if self._reader is not None:
            self._turn_away(self._reader, TooSlow())

    def _let_go(self) -> None:
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def _leave(self, keep: int = 0) -> None:
        while self._places > keep:
            self._places -= 1
            self._hot.leave()

    def _turn_away(self, reader: RequestParser, error: TriptychError) -> None:
        """Answer at once; what the client still sends is read and thrown away, so that it sees the
        answer instead of a broken connection."""
        if reader.turned_away:
            self.close()
            return
        reader.turn_away()
        self._leave()
        self._let_go()
        self._hot.observe(error)
        name = reader.headers.get(b"x-request-id", b"")
        extra = () if self._entry is None else self._entry.extra(reader.headers)
        response = ClientResponse(
            self.transport, name, keep_alive=False, http_1_0=False, extra=extra
        )
        response.fail(error)
        if isinstance(error, InvalidRequest | TooSlow):
            self.close()

    def too_slow(self, error: TooSlow) -> None:
        if self._reader is not None:
            self._turn_away(self._reader, error)
        elif self._first:
            self.transport.write(http_response(error))
            self.close()
        else:
            super().too_slow(error)

    def _complete(self, reader: RequestParser) -> None:
        if reader.raw is None or self._hot.takes(reader.body):
            call = ClientRequest(reader.path, reader.headers, reader.body)
            self._reply = reply = ClientResponse(
                self.transport,
                call.request_id,
                keep_alive=reader.keep_alive and self._shared.keep_alive,
                http_1_0=reader.http_1_0,
                extra=() if self._entry is None else self._entry.extra(reader.headers),
            )
            self._task = self.loop.create_task(self._answer(call, reply))
            self.tasks.add(self._task)
            self._task.add_done_callback(self.tasks.discard)
        else:
            self._reader = None
            self._leave()
            self._let_go()
            super().data_received(b"".join(reader.raw))

    # And its way out.

    async def _answer(self, call: ClientRequest, reply: ClientResponse) -> None:
        """Ends in the step that writes the answer's end: the client's next request may follow
        before another step of the event loop."""
        try:
            await self._hot.answer(call, reply, self._forwarding)
        except asyncio.CancelledError:
            if self._ended_by is None:
                raise
            self._hot.observe(self._ended_by)
            reply.fail(self._ended_by)
        finally:
            self.server_state.total_requests += 1
            self._task = self._reader = self._reply = None
            self._let_go()
            if self.transport.get_write_buffer_size() < _LARGE:
                self._leave()
            if self.transport.is_closing() or not (reply.ended and reply.keep_alive):
                self.close()
            else:
                self._keep_open()

    def _forwarding(self, source: Exchange | None) -> None:
        self._source = source
        if source is not None and self._paused:
            source.pause()

    def _keep_open(self) -> None:
        """One timer per connection, looked at when it rings: not one per request."""
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._idle)

    def _idle(self) -> None:
        self._idle_timer = None
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        busy = self._reader is not None or self._cold or self.timeout_keep_alive_task is not None
        if busy or left > 0:
            wait_s = left if left > 0 else self.timeout_keep_alive
            self._idle_timer = self.loop.call_later(wait_s, self._idle)
        else:
            self.close()


def connection_class(hot: HotPath, pace: Pace | None = None, entry: Entry | None = None) -> Any:
    """The protocol class for `uvicorn.Config(http=…)`."""
    kind: Any = ClientConnection
    if pace is not None:
        kind = type("PacedConnection", (ClientConnection,), {"pace": pace})
    return functools.partial(kind, hot=hot, entry=entry)
