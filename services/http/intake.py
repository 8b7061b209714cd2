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


class Intake:
    """Turns of the connections that receive large bodies: one piece, of 256 KiB at most, in a turn
    of the event loop, so that whatever else has come is seen to between two pieces."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._next_turn: asyncio.Handle | None = None

    def wait(self, go_on: Callable[[], None]) -> None:
        """`go_on` is called when another piece may be read."""
        self._waiting.append(go_on)
        if self._next_turn is None:
            self._rest()

    async def turn(self) -> None:
        """`wait` within a task."""
        future = asyncio.get_running_loop().create_future()
        self.wait(lambda: None if future.done() else future.set_result(None))
        await future

    def _rest(self) -> None:
        self._next_turn = asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._next_turn = None
        go_on = self._waiting.popleft()
        if self._waiting:
            self._rest()
        go_on()
