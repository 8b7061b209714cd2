"""Real time, with the calls of `benchmarks.simulate.clock`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class LiveClock:
    """Seconds since it was made, on the running event loop. `lags`: seconds by which each call was
    late, which tell whether the machine had time to spare."""

    def __init__(self) -> None:
        self.lags: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._begin = self._loop.time()

    @property
    def now(self) -> float:
        """Seconds since it was made."""
        return self._loop.time() - self._begin

    def at(self, time: float, call: Callable[..., object], *args: Any) -> None:
        """Make the call once `now` is `time`."""
        self._loop.call_at(self._begin + time, self._make, time, call, args)

    def after(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        """Make the call so many seconds from now."""
        self.at(self.now + seconds, call, *args)

    def _make(self, time: float, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.lags.append(max(0.0, self.now - time))
        call(*args)

    async def until(self, time: float) -> None:
        """Wait until `now` is `time`."""
        await asyncio.sleep(max(0.0, time - self.now))
