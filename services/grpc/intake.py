"""Messages of gRPC calls as they come in: few at a time, and counted among the bodies of all
requests (`services.http.bodies`).

gRPC's core assembles a message unseen and tells of it once it is whole. So one that is received
counts as the largest that may be: there are few places for that, and a call in one of them that
sends nothing makes room for those that wait. Until it has a place, a call's message stays with its
client: the core takes no more than 64 KiB of it (`serving`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from protocol.errors import InvalidRequest, RateLimited, Unavailable
from services.grpc.message_size import check_message
from services.http.bodies import STALL_S, Bodies

_PLACES = 32  # messages that are received at a time
_PATIENCE_S = 60.0  # seconds
_RETRY_AFTER_S = 1.0  # seconds


class Intake:
    """Receives messages of at most `largest` bytes, `places` at a time, so that what is being
    received is no more than `bodies` may hold besides."""

    def __init__(
        self,
        bodies: Bodies,
        places: int = _PLACES,
        stall_s: float = STALL_S,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """`stall_s`: after which a call that sends nothing gives its place to one that waits;
        `patience_s`: how long one has its place, or waits for it, at most."""
        self._bodies = bodies
        self._stall_s, self._patience_s = stall_s, patience_s
        self._places = asyncio.Semaphore(places)
        self._waiting = 0
        self._under_way: dict[asyncio.Timeout, float] = {}  # since when, by the event loop's clock

    @staticmethod
    def largest(max_body_bytes: int, max_received_bytes: int) -> int:
        """Bytes of the largest message that a door takes."""
        return max(1, min(max_body_bytes, max_received_bytes // _PLACES))

    @contextlib.asynccontextmanager
    async def message(
        self, context: Any, kind: Any, *, later: bool = False
    ) -> AsyncGenerator[Any, None]:
        """The next message of a call as a `kind` of protobuf, None after the last one. Its bytes
        are counted until the context is left. `later`: the call has had an answer to each message
        before; one that does not send another in time has had its last.

        `RateLimited` if there is no room for it or it does not come in time, `InvalidRequest` if it
        is none, `PayloadTooLarge` if it would take long to parse.
        """
        data = await self._received(context, later=later)
        if data is None:
            yield None
            return
        # It is complete as soon as it is counted, so that it never stalls: nothing is given up.
        claim = self._bodies.open(lambda: None)
        try:
            try:
                claim.add(len(data))
            except Unavailable as error:
                # RESOURCE_EXHAUSTED: the server is well, its callers send too much at once.
                raise RateLimited(error.message, retry_after_s=_RETRY_AFTER_S) from None
            claim.complete()
            yield _parsed(data, kind)
        finally:
            claim.close()

    async def _received(self, context: Any, *, later: bool) -> bytes | None:
        async with self._place():
            loop = asyncio.get_running_loop()
            own = asyncio.timeout(self._stall_s if self._waiting else self._patience_s)
            # No pause before it is entered: `_hurry` could not reschedule it in between.
            self._under_way[own] = loop.time()
            try:
                async with own:
                    data = await context.read()
            except TimeoutError:
                if later:
                    return None
                raise RateLimited(self._no_message, retry_after_s=_RETRY_AFTER_S) from None
            finally:
                del self._under_way[own]
        return None if data is grpc.aio.EOF else bytes(data)

    @property
    def _no_message(self) -> str:
        if not self._waiting:
            return f"no whole message came within {self._patience_s:g} s; open the call again"
        return (
            f"no whole message came within {self._stall_s:g} s and other calls needed the place;"
            " send sooner or open the call again"
        )

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncGenerator[None, None]:
        self._waiting += 1
        try:
            # Only now: as long as a place is free a slow client harms no other.
            if self._places.locked():
                self._hurry()
            async with asyncio.timeout(self._patience_s):
                await self._places.acquire()
        except TimeoutError:
            raise RateLimited(
                "too many calls are sending their messages", retry_after_s=_RETRY_AFTER_S
            ) from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._places.release()

    def _hurry(self) -> None:
        """Others wait: a call has no more than `stall_s` from when it got its place."""
        now = asyncio.get_running_loop().time()
        for timeout, since in self._under_way.items():
            due = max(now, since + self._stall_s)
            # One that has expired is on its way out, and cannot be rescheduled.
            if not timeout.expired() and due < (timeout.when() or now):
                timeout.reschedule(due)


def _parsed(data: bytes, kind: Any) -> Any:
    check_message(data, kind.DESCRIPTOR)
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidRequest(f"the message is no {kind.DESCRIPTOR.name} of protobuf") from None
