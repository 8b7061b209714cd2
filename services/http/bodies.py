"""Requests that are being taken in: counted from their headers on, and the bytes of all bounded."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from protocol.errors import PayloadTooLarge, RequestAborted, Unavailable
from services.http.client_bounds import TooSlow
from services.http.tasks import Threads
from services.http.turns import LARGE, BodyTurns

STALL_S = 5.0  # seconds without a byte after which a body may lose its room
_RETRY_AFTER_S = 1.0  # room comes back as soon as bodies are rendered
_DECODED_INLINE = 1 << 16  # bytes
_DECODED_AT_ONCE = 2
_T = TypeVar("_T")


class Claim:
    """What one request holds. `stalled_since`: when its last bytes came; None once it is complete.
    `give_up` ends the request whose body does not come."""

    def __init__(self, bodies: Bodies, give_up: Callable[[], None]) -> None:
        self._bodies = bodies
        self.give_up = give_up
        self.size = 0
        self.stalled_since: float | None = bodies.clock()

    def add(self, size: int) -> None:
        """More has come; `Unavailable` if there is no room for it."""
        self._bodies.make_room(size, self)
        self.size += size
        self.stalled_since = self._bodies.clock()

    def progressed(self) -> None:
        """More of what is counted already has come."""
        self.stalled_since = self._bodies.clock()

    def complete(self) -> None:
        """All has come: the request is worked on."""
        self.stalled_since = None

    def close(self) -> None:
        """The bytes are let go of; idempotent."""
        self._bodies.close(self)


class Bodies:
    """Bodies of at most `largest` bytes, at most `capacity` bytes in all, from a body's first byte
    until its request has been rendered.

    What does not fit is refused, but a body of which nothing has come for `stall_s` makes room
    before: else a few clients that fall silent would keep all others out.
    """

    def __init__(
        self,
        largest: int,
        capacity: int,
        stall_s: float = STALL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # A body above all room is too large (413): with 503 its client would try again for ever.
        self.largest = min(largest, capacity)
        self.capacity = capacity
        self.clock = clock
        self.held = 0
        self.intake = BodyTurns()
        self._decoding = Threads(_DECODED_AT_ONCE)
        self._stall_s = stall_s
        self._claims: dict[Claim, None] = {}

    def open(self, give_up: Callable[[], None]) -> Claim:
        claim = Claim(self, give_up)
        self._claims[claim] = None
        return claim

    def close(self, claim: Claim) -> None:
        # A claim that was given up for others is closed once more by its own request.
        if claim in self._claims:
            del self._claims[claim]
            self.held -= claim.size

    def make_room(self, size: int, claim: Claim) -> None:
        """Count bytes of `claim`; `Unavailable` if there is no room."""
        if self.held + size > self.capacity:
            self._give_up_stalled(self.held + size - self.capacity, claim)
        # A body that has lost its room must not take room again.
        if claim not in self._claims or self.held + size > self.capacity:
            raise Unavailable(
                f"requests of more than {self.capacity} bytes are being received",
                retry_after_s=_RETRY_AFTER_S,
            )
        self.held += size

    def _give_up_stalled(self, size: int, claim: Claim) -> None:
        """Those that have been silent longest go first."""
        limit = self.clock() - self._stall_s
        stalled = {
            other: other.stalled_since
            for other in self._claims
            if other is not claim
            # One that holds nothing frees nothing.
            and other.size
            and other.stalled_since is not None
            and other.stalled_since <= limit
        }
        for other in sorted(stalled, key=lambda one: stalled[one]):
            if size <= 0:
                return
            size -= other.size
            # Now: the task that reads it lets go of its bytes only in a later turn.
            self.close(other)
            other.give_up()

    async def decoded(self, body: bytes, decode: Callable[[bytes], _T]) -> _T:
        """What `decode` makes of a body. Of a large one it is done beside the event loop: the
        objects of a megabyte of JSON take half a second to be checked."""
        if len(body) <= _DECODED_INLINE:
            return decode(body)
        return await self._decoding.run(lambda: decode(body))

    @contextlib.asynccontextmanager
    async def read(self, request: Request, most: int | None = None) -> AsyncGenerator[bytes, None]:
        """The body of a request, which is counted until the context is left.

        `PayloadTooLarge` if it exceeds `most` bytes (or `largest`), `Unavailable` if there is no
        room for it, `TooSlow` if it stalled while others needed the room, `RequestAborted` if the
        client leaves before its end.
        """
        patience = asyncio.timeout(None)
        loop = asyncio.get_running_loop()
        # `reschedule` to now ends the wait in the task that reads, which then answers 408 itself.
        claim = self.open(lambda: patience.reschedule(loop.time()))
        try:
            limit = self.largest if most is None else min(most, self.largest)
            yield await _whole(request, limit, claim, patience, self.intake)
        finally:
            claim.close()


async def _whole(
    request: Request, limit: int, claim: Claim, patience: asyncio.Timeout, intake: BodyTurns
) -> bytes:
    try:
        async with patience:
            body = await read_body(request, limit, claim.add, intake.turn)
    except TimeoutError:
        if not patience.expired():
            raise  # another's: the request's own deadline
        raise TooSlow from None
    claim.complete()
    return body


async def read_body(
    request: Request,
    limit: int,
    count: Callable[[int], None] = lambda size: None,
    turn: Callable[[], Awaitable[None]] | None = None,
) -> bytes:
    """The request's body; `PayloadTooLarge` if it exceeds `limit` bytes, `RequestAborted` if the
    client leaves before its end. `count` is told of bytes before they are kept, `turn`
    is awaited before more of a large body is read.

    Of a body that is too large as much again is read and thrown away: a client that is cut off
    while it writes sees a broken connection instead of the answer.
    """
    body = io.BytesIO()  # gives its bytes without a copy, as a bytearray does not
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size <= limit:
                count(len(piece))
                body.write(piece)
            elif size > 2 * limit:
                break
            if size > LARGE and turn is not None:
                await turn()
    except ClientDisconnect:
        raise RequestAborted("the client left") from None
    if size > limit:
        raise PayloadTooLarge(f"the request body is larger than {limit} bytes (--max-body-bytes)")
    return body.getvalue()


Admitted = Callable[[], AbstractContextManager[None]]
_Handler = Callable[[Request], Awaitable[Response]]


def counted(admitted: Admitted) -> Callable[[_Handler], _Handler]:
    """For a route: `admitted` is entered while a request is here; what it raises is the answer. (A
    dependency of FastAPI's would do at several times the cost.)"""

    def wrap(handler: _Handler) -> _Handler:
        @functools.wraps(handler)
        async def work(request: Request) -> Response:
            with ExitStack() as stack:
                stack.enter_context(admitted())
                response = await handler(request)
                # Counted until the last byte is sent: a stream is under way long after its handler
                # has returned.
                return _Counted(response, stack.pop_all())

        return work

    return wrap


class _Counted(Response):
    """An answer that leaves `place` once it is sent, or cannot be."""

    def __init__(self, response: Response, place: ExitStack) -> None:
        self._response = response
        self._place = place
        # FastAPI asks every response for its background work.
        self.background = response.background
        self.raw_headers = response.raw_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            await self._response(scope, receive, send)
