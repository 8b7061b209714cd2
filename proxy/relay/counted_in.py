"""What a client connection takes of the hot path: places for requests, room for large bodies."""

from __future__ import annotations

from collections.abc import Callable

from proxy.relay.hot_path import HotPath
from services.http.bodies import Claim

_AT_ONCE = 1 << 19  # bytes claimed ahead: counting each piece costs more than taking it
_COUNTED = 1 << 16  # smaller bodies are bounded by the number of requests


class Places:
    """Requests that a connection has counted in: the one under way, and any whose large answer the
    client has not taken yet."""

    def __init__(self, hot: HotPath) -> None:
        self._hot = hot
        self._taken = 0

    def enter(self) -> None:
        """Raises while no request can be taken."""
        self._hot.enter()
        self._taken += 1

    def leave(self, keep: int = 0) -> None:
        while self._taken > keep:
            self._taken -= 1
            self._hot.leave()


class BodyRoom:
    """Counts a large body's bytes until its request is over: another attempt may need them.
    `give_up` is called if the body has stalled, and others need the room."""

    def __init__(self, hot: HotPath, give_up: Callable[[], None]) -> None:
        self._hot = hot
        self._give_up = give_up
        self._claim: Claim | None = None

    def hold(self, size: int, *, complete: bool) -> None:
        """So many bytes have come by now."""
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
        if self._claim is not None:
            self._claim.close()
            self._claim = None
