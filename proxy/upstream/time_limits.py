"""Time limits: one that moves, on one timer of the event loop, and one that a busy loop spares."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
_SLICES = 8  # so many turns of the loop at least, however late it is


class Alarm:
    """Calls `ring` once the time that was last `set` has passed, unless it is stopped before.

    Every call to a worker has a deadline that hardly ever passes. To make a timer and cancel it
    costs 0.7 µs each time; the one timer here is looked at when it rings, and set again for what is
    left. `close` ends it, as an alarm that is only stopped keeps its owner until the timer rings.
    """

    __slots__ = ("_due", "_loop", "_ring", "_rings_at", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._rings_at = math.inf

    def set(self, seconds: float) -> None:
        """Ring in so many seconds, not when it was set to before."""
        self._due = due = self._loop.time() + seconds
        if due < self._rings_at:
            if self._timer is not None:
                self._timer.cancel()
            self._arm(seconds)

    def stop(self) -> None:
        self._due = math.inf

    def close(self) -> None:
        """Stop for good."""
        self.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, seconds: float) -> None:
        self._rings_at = self._due
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer, self._rings_at = None, math.inf
        if self._due == math.inf:
            return
        left_s = self._due - self._loop.time()
        if left_s > 0.0:
            self._arm(left_s)
        else:
            self._due = math.inf
            self._ring()


async def unhurried(work: Coroutine[Any, Any, _T], seconds: float) -> _T:
    """What `work` returns; `TimeoutError` if it takes longer than `seconds`.

    The time passes in slices, and a slice has passed once the loop has had a turn after it. A loop
    that is held up for long would let timers ring before it looks at what has arrived meanwhile:
    what is late here then is this process.
    """
    task = asyncio.ensure_future(work)
    try:
        for _ in range(_SLICES):
            await asyncio.wait({task}, timeout=seconds / _SLICES)
            if task.done():
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()
