"""The client's side of the hot path, on the listener that FastAPI shares.

A connection belongs to uvicorn except while a request for a relayed route is on it: such a request
never becomes an ASGI call. Which it is shows in its first bytes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from protocol.errors import InvalidRequest, RequestAborted, TriptychError
from protocol.request_record import RequestRecord
from proxy.relay.hot_path import Flow, HotPath, HotShare
from proxy.relay.request import ClientRequest, Entry, is_relayed, request_id_of
from proxy.relay.request_parser import RequestHead, RequestParser
from proxy.relay.response import ClientResponse
from proxy.upstream.http1 import CONTINUE, KnownHeads
from proxy.upstream.time_limits import Alarm
from services.http.client_bounds import TooSlow
from services.http.listener import Listener
from services.http.raw_writes import http_response
from services.http.turns import LARGE

_LARGE = 1 << 20  # bytes of an answer that the client has not taken
_KNOWN_HEADS = 2  # a client's usual one, and another


class ClientConnection(Listener):
    """One client connection."""

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
        self._hot, self._entry = hot, entry
        self._first = b""
        self._heads: KnownHeads[RequestHead] = KnownHeads(_KNOWN_HEADS)
        self._reader: RequestParser | None = None
        self._task: asyncio.Task[None] | None = None
        self._reply: ClientResponse | None = None
        self._flow = Flow()
        self._ended_by: TriptychError | None = None
        self._hot_share = HotShare(hot, self._give_up)
        self._idle = Alarm(self.loop, self._close_if_idle)

    @property
    def reading(self) -> bool:
        hot = self._reader is not None and self._reply is None
        return hot or bool(self._first) or super().reading

    # What the transport reports.

    @property
    def _between(self) -> bool:
        # More of a hot request is no beginning: it must not wait for a turn of its own.
        return self._reader is None and not self._first and super()._between

    def received(self, data: bytes) -> None:
        if self._reader is not None:
            self._read(self._reader, data)
            return
        if self._first:
            data, self._first = self._first + data, b""
        if not (super()._between and self._hot.takes_any):
            super().received(data)
        else:
            self._begin(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._cancel(self._task)
        self._idle.close()
        self._hot_share.close()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        self._flow.pause()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._flow.resume()
        self._hot_share.leave(keep=int(self._reader is not None and self._reader.admitted))
        super().resume_writing()

    def shutdown(self) -> None:
        if self._reply is not None:
            self._reply.keep_alive = False
        elif self._reader is None:
            super().shutdown()

    def end(self, error: TriptychError) -> None:
        if self._task is not None:
            self._ended_by = error
            self._cancel(self._task)
        elif self._reader is not None:
            self._turn_away(self._reader, error)
            self.close()
        else:
            super().end(error)

    def _cancel(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before it begins never reaches its `finally`.
        task.add_done_callback(self.tasks.discard)
        task.cancel()

    # A request's way in.

    def _begin(self, data: bytes) -> None:
        """The first bytes of a request: hot, cold, or too few to tell."""
        self._unset_keepalive_if_required()
        data = data.lstrip(b"\r\n")  # some clients send an empty line too many
        relayed = is_relayed(data)
        if relayed:
            # Unless all are relayed, the body decides: uvicorn may have to get every byte.
            raw, hot = not self._hot.takes_all, self._hot
            self._reader = RequestParser(hot.max_body_bytes, keep_raw=raw, heads=self._heads)
            self._begin_reading()
            self._read(self._reader, data)
        elif relayed is None:
            self._first = data
            self._begin_reading()
            self._watch_reading()
        else:
            super().received(data)

    def _read(self, reader: RequestParser, data: bytes) -> None:
        if self._reply is not None:
            self._reply.keep_alive = False  # pipelined: the client asks again on a new connection
            return
        self._read_size += len(data)
        try:
            reader.feed(data)
            if not reader.turned_away:
                self._hot_share.hold(reader.size, complete=reader.complete)
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
            if reader.size > LARGE:
                self._rest()

    def _enter(self, reader: RequestParser) -> None:
        """Counted from its headers on: a body takes memory while it arrives."""
        if self._entry is not None:
            self._entry.check(reader.headers)
        self._hot_share.enter()
        reader.admitted = True
        if reader.expects_continue and not reader.complete:
            self.transport.write(CONTINUE)

    def _give_up(self) -> None:
        """The body has stalled, and others need the room."""
        if self._reader is not None:
            self._turn_away(self._reader, TooSlow())

    def _turn_away(self, reader: RequestParser, error: TriptychError) -> None:
        """Answer at once; what the client still sends is read and thrown away, so that it sees the
        answer instead of a broken connection."""
        if reader.turned_away:
            self.close()
            return
        reader.turn_away()
        self._hot_share.close()
        self._hot.observe(error)
        reply = self._response(reader, request_id_of(reader.headers), keep_alive=False)
        reply.fail(error)
        self._hot.over(reply)
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
            keep_alive = reader.keep_alive and self._shared.keep_alive
            self._reply = reply = self._response(reader, call.request_id, keep_alive=keep_alive)
            self._task = self.loop.create_task(self._answer(call, reply))
            self.tasks.add(self._task)
        else:
            self._reader = None
            self._hot_share.close()
            super().received(b"".join(reader.raw))

    # And its way out.

    def _response(self, reader: RequestParser, name: bytes, *, keep_alive: bool) -> ClientResponse:
        kept = self._hot.keeps_record(name)
        record = RequestRecord(reader.path, name.decode("latin-1"), kept=kept)
        extra = () if self._entry is None else self._entry.extra(reader.headers)
        return ClientResponse(
            self.transport, record, keep_alive=keep_alive, http_1_0=reader.http_1_0, extra=extra
        )

    async def _answer(self, call: ClientRequest, reply: ClientResponse) -> None:
        """Ends in the step that writes the answer's end: the client's next request may follow
        before another step of the event loop."""
        try:
            await self._hot.answer(call, reply, self._flow.forwarding)
        except asyncio.CancelledError:
            if self._ended_by is None:
                reply.record.outcome = RequestAborted.code
                self._hot.observe(RequestAborted("the client left"))
                raise
            self._hot.observe(self._ended_by)
            reply.fail(self._ended_by)
        finally:
            self.server_state.total_requests += 1
            self._hot.over(reply)
            if self._task is not None:
                self.tasks.discard(self._task)
            self._task = self._reader = self._reply = None
            self._hot_share.let_go()
            if self.transport.get_write_buffer_size() < _LARGE:
                self._hot_share.leave()
            if self.transport.is_closing() or not (reply.ended and reply.keep_alive):
                self.close()
            else:
                self._idle.set(self.timeout_keep_alive)

    def _close_if_idle(self) -> None:
        if not self._between or self._held or self.timeout_keep_alive_task is not None:
            self._idle.set(self.timeout_keep_alive)
        else:
            self.close()
