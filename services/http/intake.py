"""Large bodies are taken in piece by piece, one connection after the other.

A connection on the same machine or a fast network delivers gigabytes a second. Eight of them keep
an event loop busy with copying, and all other clients waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

LARGE = 1 << 20
"""Bytes of a body that are taken in as they come; what follows waits for its turn."""
_PAUSE_S = 0.001  # a piece is up to 256 KiB: 250 MB/s for all large bodies together


class Intake:
    """Turns of the connections that receive large bodies, each `_PAUSE_S` after the one before."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, go_on: Callable[[], None]) -> None:
        """`go_on` is called when another piece may be read."""
        self._waiting.append(go_on)
        if self._timer is None:
            self._rest()

    async def turn(self) -> None:
        """`wait` within a task."""
        future = asyncio.get_running_loop().create_future()
        self.wait(lambda: None if future.done() else future.set_result(None))
        await future

    def _rest(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_PAUSE_S, self._next)

    def _next(self) -> None:
        self._timer = None
        go_on = self._waiting.popleft()
        if self._waiting:
            self._rest()
        go_on()
