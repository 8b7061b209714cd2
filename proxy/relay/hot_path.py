"""The seam between the listener and what answers relayed requests, and what a client's connection
has of it: places for requests, room for large bodies, the stream that goes through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from protocol.errors import TriptychError
from proxy.relay.request import ClientRequest
from proxy.relay.response import ClientResponse
from proxy.upstream.exchange import Exchange
from services.http.bodies import Bodies, Claim

_AT_ONCE = 1 << 19  # bytes claimed ahead: counting each piece costs more than taking it
_COUNTED = 1 << 16  # smaller bodies are bounded by the number of requests


class HotPath(Protocol):
    """What answers relayed requests."""

    max_body_bytes: int
    bodies: Bodies  # what is being received on all routes

    def keeps_record(self, request_id: bytes) -> bool:
        """Whether the log, the page or a trace shows the record of a request with this id."""

    @property
    def takes_any(self) -> bool:
        """Whether any request could be for it; if not, all are uvicorn's."""

    @property
    def takes_all(self) -> bool:
        """Whether all are for it, with any body."""

    def takes(self, body: bytes) -> bool:
        """Whether a request with this body is for it."""

    def enter(self) -> None:
        """A request's headers are there: count it in, or raise while no request can be taken."""

    def leave(self) -> None:
        """The request has ended, with or without an answer."""

    def observe(self, error: TriptychError) -> None:
        """Told of requests that are turned away, or ended from here: a client's leaving too."""

    def over(self, reply: ClientResponse) -> None:
        """Told of every answer once no more of it is sent."""

    async def answer(
        self, call: ClientRequest, reply: ClientResponse, source: Callable[[Exchange | None], None]
    ) -> None:
        """Answer through `reply`, errors included; cancelled if the client leaves. `source` is to
        be told whose stream is forwarded, None at its end."""


class HotShare:
    """What a client connection has of the hot path: places for the request under way, and for any
    whose large answer the client has not taken yet; room for a large body until its request is
    over, as another attempt may need it. `give_up` is called if the body has stalled, and others
    need the room."""

    def __init__(self, hot: HotPath, give_up: Callable[[], None]) -> None:
        self._hot = hot
        self._give_up = give_up
        self._places = 0
        self._claim: Claim | None = None

    def enter(self) -> None:
        """A request takes a place. Raises while none can be taken."""
        self._hot.enter()
        self._places += 1

    def leave(self, keep: int = 0) -> None:
        """Give places back, all but those to `keep`."""
        while self._places > keep:
            self._places -= 1
            self._hot.leave()

    def hold(self, size: int, *, complete: bool) -> None:
        """So many bytes of the body have come by now."""
        if size <= _COUNTED:
            return
        if self._claim is None:
            self._claim = self._hot.bodies.open(self._give_up)
        if size > self._claim.size:
            self._claim.add(max(_AT_ONCE, size - self._claim.size))
        else:
            self._claim.progressed()
        if complete:
            self._claim.complete()

    def let_go(self) -> None:
        """The body is needed no more."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def close(self) -> None:
        """Give back all."""
        self.leave()
        self.let_go()


class Flow:
    """Between one client connection and the stream that goes through it, if one does."""

    def __init__(self) -> None:
        self._source: Exchange | None = None
        self._paused = False

    def forwarding(self, source: Exchange | None) -> None:
        """Whose stream is forwarded from here on, None at its end."""
        self._source = source
        # The client may have fallen behind an answer before this one.
        if source is not None and self._paused:
            source.pause()

    def pause(self) -> None:
        self._paused = True
        if self._source is not None:
            self._source.pause()

    def resume(self) -> None:
        self._paused = False
        if self._source is not None:
            self._source.resume()
