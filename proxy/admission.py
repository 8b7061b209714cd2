"""How many requests are under way at once; the rest wait in a bounded queue, or are refused."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from protocol.errors import DeadlineExceeded, Unavailable
from services.admission.service_rate import ServiceRate

_LEAST_RETRY_S = 1.0
_A_FEW = 32


@dataclass(frozen=True)
class Limits:
    """`queue`: requests that may wait, 0 for none. `wait_s`: the wait foreseen at which a request
    is refused at once. `timeout_s`: the longest that one really waits."""

    queue: int = 1024
    wait_s: float = 5.0
    timeout_s: float = 60.0


@dataclass(order=True)
class _Waiting:
    priority: int
    order: int
    turn: asyncio.Future[None] = field(compare=False)


class Admission:
    """`room` says how many may be under way, 0 for any number; whoever knows that it has grown
    calls `pump`."""

    def __init__(
        self,
        room: Callable[[], int],
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._room = room
        self._limits = limits
        self._clock = clock
        self._queue: list[_Waiting] = []
        self._order = itertools.count()
        self._paced = ServiceRate()
        self.under_way = 0
        self.waiting = 0
        self.refused = 0

    @property
    def foreseen_s(self) -> float:
        """How long the last in the queue will wait, by the pace at which requests have ended."""
        return self._paced.wait(self.waiting + 1)

    @contextlib.asynccontextmanager
    async def admitted(self, priority: int, left_s: float) -> AsyncGenerator[None, None]:
        """Inside, the request is under way. Lower `priority` is earlier. Raises `Unavailable` at
        once if the wait would be too long, `DeadlineExceeded` after `left_s`."""
        await self._enter(priority, left_s)
        try:
            yield
        finally:
            self.under_way -= 1
            self._pace()
            self.pump()

    async def _enter(self, priority: int, left_s: float) -> None:
        self.pump()
        if not self.waiting and self._has_room():
            self.under_way += 1
            return
        foreseen = self.foreseen_s
        if self._too_long(foreseen) or self.waiting >= self._limits.queue:
            self.refused += 1
            retry = max(_LEAST_RETRY_S, foreseen)
            raise Unavailable("all workers are busy", code="overloaded", retry_after_s=retry)
        await self._turn(priority, left_s)

    def _too_long(self, foreseen_s: float) -> bool:
        """Never for the first in the queue, by whose wait a pace that was slow is learnt anew. As
        long as no pace is known, as many wait as are under way, or a few."""
        if self._paced.known:
            return self.waiting > 0 and foreseen_s > self._limits.wait_s
        return self.waiting >= max(_A_FEW, self._room())

    async def _turn(self, priority: int, left_s: float) -> None:
        """Wait for it; `under_way` is counted by whoever gives it."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self.waiting:
            self._paced.begin(self._clock())
        heapq.heappush(self._queue, _Waiting(priority, next(self._order), turn))
        self.waiting += 1
        limit = min(left_s, self._limits.timeout_s)
        try:
            async with asyncio.timeout(limit):
                await turn
        except TimeoutError:
            self._take_back(turn)
            if limit == left_s:
                raise DeadlineExceeded("the request's deadline passed in the queue") from None
            self.refused += 1
            raise Unavailable(
                "no worker was free in time", code="queue_timeout", retry_after_s=_LEAST_RETRY_S
            ) from None
        except asyncio.CancelledError:
            self._take_back(turn)
            raise

    def _take_back(self, turn: asyncio.Future[None]) -> None:
        """Nobody waits for this turn any more; if it was given already it goes to the next."""
        if turn.done() and not turn.cancelled():
            self.under_way -= 1
            self.pump()
            return
        turn.cancel()
        self.waiting -= 1
        if len(self._queue) > 2 * self._limits.queue:
            self._queue = [one for one in self._queue if not one.turn.done()]
            heapq.heapify(self._queue)

    def _has_room(self) -> bool:
        room = self._room()
        return not room or self.under_way < room

    def pump(self) -> None:
        """Those who wait enter as far as there is room."""
        while self._queue and self._has_room():
            turn = heapq.heappop(self._queue).turn
            if not turn.done():
                self.waiting -= 1
                self.under_way += 1
                turn.set_result(None)

    def _pace(self) -> None:
        if self.waiting:
            self._paced.leave(self._clock())
