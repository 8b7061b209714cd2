"""uvicorn's side of a client connection, with a bound on everything that a client can take its time
over: sending a request, and taking in the answer."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from protocol.errors import InvalidRequest, TriptychError
from services.http.client_bounds import TOO_MUCH, Pace, RequestFraming, TooSlow, head_fits
from services.http.raw_writes import JoinedWrites, TakingTimer, http_response
from services.http.turns import LARGE, SharedState, caller_key

ABORT = "triptych.abort"
ENDED = "triptych.ended"
_UNUSED_S = 5.0  # a connection opened ahead of need may wait so long in a crowd


class Listener(HttpToolsProtocol):
    """One client connection. A request that is too slow in coming is answered with 408, a client
    that does not take its answer is cut off.

    The scope's extension `ABORT` is a function that cuts the client off; `ENDED` is the error that
    a request gets which the server has no more time for.
    """

    pace: ClassVar[Pace] = Pace()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._shared = server_state if isinstance(server_state, SharedState) else SharedState()
        self._fresh, self._held = True, b""
        self._resting = self._cold_reading = self._cold_head = False
        self._read_timer: asyncio.TimerHandle | None = None
        self._taking = TakingTimer()
        self._begin_reading()

    @property
    def reading(self) -> bool:
        """Whether a request has begun to arrive, or the first one is yet to."""
        return self._cold_reading or self._fresh or bool(self._held)

    @property
    def _between(self) -> bool:
        """Whether what comes next is a request's beginning."""
        return not (self._cold_reading or self._answering)

    # What the transport reports.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_reading()
        self._watch_reading()

    def data_received(self, data: bytes) -> None:
        """The beginning of a request waits for its turn; its connection is not read meanwhile."""
        self._fresh = False
        if self._held:
            self._held += data
        elif self._between and not self._shared.beginnings.begin():
            self._postpone(data)
        else:
            self.received(data)

    def _postpone(self, data: bytes) -> None:
        self._held = data
        self._unset_keepalive_if_required()  # it is idle no more, though uvicorn has seen nothing
        self._begin_reading()
        self.transport.pause_reading()  # what follows waits in the kernel, which bounds it
        peer = self.transport.get_extra_info("peername") or ("",)
        self._shared.beginnings.wait(caller_key(data, str(peer[0])), self._begin_postponed)

    def _begin_postponed(self) -> None:
        data, self._held = self._held, b""
        if data and not self.transport.is_closing():
            self.transport.resume_reading()
            self.received(data)

    def received(self, data: bytes) -> None:
        """More of the request that has begun."""
        self._read_size += len(data)
        super().data_received(data)
        if self._cold_reading and not self._framing.fits(self._read_size, self._body_size):
            self._refuse(InvalidRequest(TOO_MUCH))
        self._watch_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._held = b""
        if self._read_timer is not None:
            self._read_timer.cancel()
        self._taking.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._taking.start(self.transport, self.pace)
        super().pause_writing()

    def resume_writing(self) -> None:
        if not self.transport.is_closing():
            self._taking.stop()
        super().resume_writing()

    # What the parser and uvicorn report.

    def on_message_begin(self) -> None:
        self._cold_reading = self._cold_head = True
        self._begin_reading()
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        if not head_fits(self.url, self.headers):
            self._refuse(error := InvalidRequest(TOO_MUCH))
            raise error  # the parser stops
        super().on_headers_complete()  # raises if the target is none, as CONNECT's is
        self._cold_head = False
        if self.cycle is not None and not self._shared.keep_alive:
            self.cycle.keep_alive = False
        if self.cycle is not None and not isinstance(self.cycle.transport, JoinedWrites):
            self.cycle.transport = JoinedWrites(self.transport, self.loop)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        super().on_body(body)
        if self._body_size > LARGE and not self._answering:
            self._rest()  # it was refused: what still comes is thrown away

    def on_message_complete(self) -> None:
        self._cold_reading = False
        super().on_message_complete()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():  # by uvicorn, without a time limit for the client
            self.close()

    def shutdown(self) -> None:
        """No further request: the connection ends with its answer, or now if it is idle. A request
        that is arriving is answered."""
        if self._answering:
            self.cycle.keep_alive = False
        elif not self.reading:
            self.close()

    @property
    def unused(self) -> bool:
        return self._fresh

    def end(self, error: TriptychError) -> None:
        """There is no more time for the request: its handler finds the error under `ENDED`."""
        if self._answering and not self._cold_reading:
            self.cycle.scope["extensions"][ENDED] = error  # type: ignore[assignment]
            self.cycle.message_event.set()
        elif self.reading and not self._fresh:
            self._refuse(error)
        else:
            self.close()

    def give_way(self) -> None:
        """Others wait for this place: as `shutdown`; one whose first request is long in coming ends
        too. A closing one keeps its time: set anew at each look, it would never end."""
        if not self.transport.is_closing():
            self.shutdown()
        if self._fresh and self.loop.time() - self._read_since > _UNUSED_S:
            self.close()

    # Bounds.

    def _rest(self) -> None:
        """Read on when it is this connection's turn."""
        if not self._resting:
            self._resting = True
            self.transport.pause_reading()
            self._shared.intake.wait(self._read_on)

    def _read_on(self) -> None:
        self._resting = False
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def close(self) -> None:
        """Close once what has been written is taken, which must not last for ever."""
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._taking.start(self.transport, self.pace)

    timeout_keep_alive_handler = close  # uvicorn's own has no time limit for what is left to take

    def _begin_reading(self) -> None:
        """The clock starts anew; the timer is looked at when it rings: not one per request."""
        self._read_since = self.loop.time()
        self._read_size = self._body_size = 0
        self._framing = RequestFraming()

    def _watch_reading(self) -> None:
        if self._read_timer is None and self.reading and not self.transport.is_closing():
            self._read_timer = self.loop.call_later(self.pace.grace_s, self._look)

    def _look(self) -> None:
        self._read_timer = None
        if not self.reading or self.transport.is_closing():
            return
        if self._held or self.flow.read_paused or (self._cold_head and self._answering):
            self._begin_reading()  # it is not this client's turn
        left_s = self.pace.allowed_s(self._read_size) - (self.loop.time() - self._read_since)
        if left_s > 0.0:
            self._read_timer = self.loop.call_later(left_s, self._look)
        else:
            self.too_slow(TooSlow())

    def too_slow(self, error: TooSlow) -> None:
        """What is done about a request that does not come."""
        if self._cold_reading:
            self._refuse(error)
        else:
            self.close()

    def send_400_response(self, msg: str) -> None:
        """For what is not HTTP."""
        self._refuse(InvalidRequest(msg))

    def _refuse(self, error: TriptychError) -> None:
        """Answer at once and close, unless another answer is under way."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if self._cold_reading and not self._cold_head:
            free = not (cycle.response_started or self.pipeline)
        else:
            free = not self._answering
        if free:
            self.transport.write(http_response(error))
        if self._answering:
            cycle.disconnected = True
            cycle.message_event.set()
        self.close()
