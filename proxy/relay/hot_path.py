"""The seam between the listener and what answers relayed requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from protocol.errors import TriptychError
from proxy.relay.request import ClientRequest
from proxy.relay.response import ClientResponse
from proxy.upstream.exchange import Exchange
from services.http.bodies import Bodies


class HotPath(Protocol):
    """What answers relayed requests."""

    max_body_bytes: int
    bodies: Bodies  # what is being received on all routes

    def keeps_record(self, request_id: bytes) -> bool:
        """Whether anybody reads the record of a request with this id."""

    @property
    def takes_any(self) -> bool:
        """Whether any request could be for it; if not, all are uvicorn's."""

    @property
    def takes_all(self) -> bool:
        """Whether all are for it, whatever is in them."""

    def takes(self, body: bytes) -> bool:
        """Whether a request with this body is for it."""

    def enter(self) -> None:
        """A request's headers are there: count it in, or raise while no request can be taken."""

    def leave(self) -> None:
        """It is over, whatever has become of it."""

    def observe(self, error: TriptychError) -> None:
        """Told of requests that are turned away."""

    def over(self, reply: ClientResponse) -> None:
        """Told of every answer once no more of it is sent."""

    async def answer(
        self, call: ClientRequest, reply: ClientResponse, source: Callable[[Exchange | None], None]
    ) -> None:
        """Answer through `reply`, errors included; cancelled if the client leaves. `source` is to
        be told whose stream is forwarded, None at its end."""
