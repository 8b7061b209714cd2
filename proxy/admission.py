"""How many requests are under way at once; the rest wait in a bounded queue, or are refused."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass

from protocol.errors import DeadlineExceeded, TriptychError, Unavailable
from proxy.request_state import RequestState
from services.admission.queue import AdmissionQueue
from services.admission.tenant_shares import TenantShares
from services.admission.ticket import DEFAULT_PRIORITY, Ticket

_LEAST_RETRY_S = 1.0  # what Retry-After says at least
# Of the queue, where higher is earlier; clients say it as vLLM does, lower is earlier.
_LOWEST, _HIGHEST = 1, 100


@dataclass(frozen=True)
class QueueLimits:
    """`queue`: requests that may wait, 0 for none. `wait_s`: the wait foreseen at which a request
    is refused at once. `timeout_s`: the longest that one really waits. `tenant_share`: of what runs
    at once, the most for one tenant while another asks."""

    queue: int = 1024
    wait_s: float = 5.0
    timeout_s: float = 60.0
    tenant_share: float = 1.0


class InFlight:
    """Requests in this process, from their headers to their answers' end, with any
    outcome; at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.count = 0

    def enter(self) -> None:
        """`Unavailable` if as many as allowed are in; counted till `leave`."""
        if self.count >= self._limit:
            raise Unavailable(
                f"the proxy has {self.count} requests, as many as --max-in-flight allows",
                retry_after_s=_LEAST_RETRY_S,
            )
        self.count += 1

    def leave(self) -> None:
        self.count -= 1

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """`enter` and `leave`."""
        self.enter()
        try:
            yield
        finally:
            self.leave()


class Admission:
    """Lets as many requests begin as the workers have room for. Tenants share the queue fairly.

    `room`: requests that may be under way, 0 for any number. `at_once`: requests that all workers
    run at once. While no worker is up those who wait go on waiting, as one may be back in a moment;
    who comes where none waits enters, and hears that there is none.
    """

    def __init__(
        self,
        room: int,
        limits: QueueLimits,
        clock: Callable[[], float] = time.monotonic,
        at_once: float = math.inf,
    ) -> None:
        self.room = room
        self.at_once = at_once
        self._shares = TenantShares(limits.tenant_share)
        # Asked once: without a limit no tenant is counted, and no clock read for a request.
        self._limited = self._shares.limit
        self._clock = clock
        self._timeout_s = limits.timeout_s
        self._queue: AdmissionQueue[None, bool] = AdmissionQueue(
            limits.queue, limits.timeout_s * 1e3, limits.wait_s * 1e3
        )
        self._none_up = False
        self.under_way = 0

    @property
    def waiting(self) -> int:
        return self._queue.count

    def resize(self, room: int, at_once: float, *, none_up: bool = False) -> None:
        """Workers have come, gone or changed."""
        self.room, self.at_once, self._none_up = room, at_once, none_up
        self.pump()

    @contextlib.asynccontextmanager
    async def admitted(self, state: RequestState, cost: float) -> AsyncGenerator[None, None]:
        """Inside, the request is under way. Raises `Unavailable` or `RateLimited` at once if the
        wait would be too long, `DeadlineExceeded` once the request's own time is up."""
        # The relay enters and leaves by itself: a context would take each short request longer.
        tenant = state.caller.tenant
        if not self.try_enter(tenant):
            await self.wait(state, cost)
        try:
            yield
        finally:
            self.leave(tenant)

    def try_enter(self, tenant: str) -> bool:
        """Whether a request is under way at once, as no other one waits and there is room."""
        if self._limited:
            self._shares.asks(tenant, self._clock() * 1e3)
        # A share lapses with time, and no event tells of it: those who wait are looked at first.
        if self._queue.count:
            self.pump()
        if self._queue.count or not self._has_room():
            return False
        if self._limited and not self._allows(tenant, self._clock() * 1e3):
            return False
        self._enter(tenant)
        return True

    def _allows(self, tenant: str, now_ms: float) -> bool:
        return self._shares.allows(tenant, self.at_once, now_ms)

    def _enter(self, tenant: str) -> None:
        self.under_way += 1
        if self._limited:
            self._shares.enter(tenant)

    async def wait(self, state: RequestState, cost: float) -> None:
        """Under way after a wait."""
        # Before it stands in the queue: this raises if the deadline has passed.
        left_s = state.left_s
        ticket = self._queue.push(
            None,
            self._clock() * 1e3,
            _LEAST_RETRY_S,
            self.room,
            tenant=state.caller.tenant,
            priority=min(_HIGHEST, max(_LOWEST, DEFAULT_PRIORITY - state.priority)),
            cost=cost,
            deadline_s=left_s,
        )
        self.pump()  # those who wait may be over their share, and this one not
        with state.record.during("queue"):
            await self._turn(ticket, left_s)

    def leave(self, tenant: str) -> None:
        """A request has ended."""
        self.under_way -= 1
        if self._limited:
            self._shares.leave(tenant)
        if self._queue.count:
            self.pump()

    async def _turn(self, ticket: Ticket[None, bool], left_s: float) -> None:
        """Wait for it; `pump` counts the request in `under_way`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            # It may be cancelled already, by the timeout or with its request, and its ticket be
            # served in the same turn of the loop: `_take_back` gives that place away again.
            if not turn.done():
                turn.set_result(None)

        ticket.when_ended(wake)
        try:
            async with asyncio.timeout(min(left_s, self._timeout_s)):
                await turn
        except TimeoutError:
            self._take_back(ticket)
            raise self._late(left_s) from None
        except asyncio.CancelledError:
            self._take_back(ticket)
            raise
        if isinstance(ticket.outcome, TriptychError):
            raise ticket.outcome

    def _late(self, left_s: float) -> TriptychError:
        if left_s <= self._timeout_s:
            return DeadlineExceeded("the request's deadline passed in the proxy's queue")
        return Unavailable(
            f"no worker was free within --queue-timeout, {self._timeout_s:g} s",
            code="queue_timeout",
            retry_after_s=_LEAST_RETRY_S,
        )

    def _take_back(self, ticket: Ticket[None, bool]) -> None:
        """The request has left; its turn, if it was given already, goes to the next one."""
        if ticket.outcome is None:
            self._queue.remove(ticket)
        elif ticket.outcome is True:
            self.leave(ticket.tenant)

    def _has_room(self) -> bool:
        return not self.room or self.under_way < self.room

    def pump(self) -> None:
        """Those who wait enter as far as there is room, and their shares allow."""
        if self._none_up:
            return
        now_ms = self._clock() * 1e3
        while self._queue.count and self._has_room():
            waiting = self._queue.in_order()
            # A request whose tenant has used its share does not block the requests behind it.
            ticket = next((one for one in waiting if self._allows(one.tenant, now_ms)), None)
            if ticket is None:
                return
            self._queue.serve(ticket, now_ms)
            # Counted here, not once its task runs: another request would find the room free.
            self._enter(ticket.tenant)
            ticket.end(True)
