"""How a server ends: it says so, serves on for a while, and lets what is under way finish.

serving ── signal ──▶ draining ── drain delay ──▶ closing ── nothing is under way ──▶ ended
                                                      └───── or the time is over: errors ──▶ ended

A second signal ends what is under way at once, in any state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

_LOOK_S = 0.05  # how often it is looked whether work has ended
_LAST_WORDS_S, _HASTY_WORDS_S = 2.0, 0.2  # seconds to send errors in


class LameDuck:
    """One server's way to its end. Signals call `signal`; the server awaits `over`, then
    `handed_over` if others fetch from it, then `finished`; the routes for probes look at
    `draining`."""

    def __init__(self, drain_delay_s: float = 0.0, shutdown_timeout_s: float = 5.0) -> None:
        self._drain_delay_s = drain_delay_s
        self._shutdown_timeout_s = shutdown_timeout_s
        self._until: float | None = None
        self._hurry = asyncio.Event()
        self.begun = asyncio.Event()
        self.closing = asyncio.Event()

    @property
    def draining(self) -> bool:
        """Whether the server is about to leave: it still serves, but had better get nothing new."""
        return self.begun.is_set()

    @property
    def hurried(self) -> bool:
        """Whether what is under way gets no more time."""
        return self._hurry.is_set()

    def signal(self) -> None:
        """The server is told to end; the second time, at once."""
        if self.draining:
            self._hurry.set()
        self.begun.set()

    async def over(self) -> None:
        """Until the port may be closed."""
        await self.begun.wait()
        await self._up_to(self._drain_delay_s)

    async def handed_over(self, kept: Callable[[], Awaitable[bool]]) -> bool:
        """Until nothing is kept for others, while the port is open; False if that got no more time.
        It takes from the time that `finished` has."""
        self.begun.set()
        left_s = self._left_s()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                while await kept():
                    # `kept` may take the cancellation for its own time limit, and return.
                    if self.hurried or not self._left_s():
                        return False
                    await self._up_to(_LOOK_S)
                return True
        return False

    async def finished(self, busy: Callable[[], bool]) -> bool:
        """Until nothing is under way; False if it got no more time."""
        self.begun.set()
        self.closing.set()
        return await self._ends(busy, self._left_s(), self._hurry)

    def _left_s(self) -> float:
        """Of the time that what is under way has, which begins when it is first asked for."""
        now = asyncio.get_running_loop().time()
        # One budget for handing over and finishing: supervisors kill after a fixed time.
        if self._until is None:
            self._until = now + self._shutdown_timeout_s
        return max(0.0, self._until - now)

    async def told(self, busy: Callable[[], bool]) -> None:
        """Until what was under way has got its errors, for a moment at most."""
        await self._ends(busy, _HASTY_WORDS_S if self.hurried else _LAST_WORDS_S)

    @staticmethod
    async def _ends(
        busy: Callable[[], bool], seconds: float, hurry: asyncio.Event | None = None
    ) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while busy():
            left_s = until - loop.time()
            if left_s <= 0 or (hurry is not None and hurry.is_set()):
                return False
            await asyncio.sleep(min(left_s, _LOOK_S))
        return True

    async def _up_to(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
