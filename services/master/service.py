"""The master on a real clock: what HTTP routes call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from protocol.errors import TriptychError
from protocol.registry import (
    FinishedReports,
    Heartbeat,
    InstanceInfo,
    InstanceName,
    LeaseAnswer,
    Placement,
    ScheduleRequest,
)
from services.master.admission import Ticket
from services.master.config import MasterConfig
from services.master.master import Master
from services.master.metrics import MasterMetrics
from services.master.subscriber import Subscriber

_TICK_S = 0.1
_PUMP_S = 0.005


class MasterService:
    """A master, the events it follows, and the time. Lives on one event loop."""

    def __init__(self, config: MasterConfig) -> None:
        self.config = config
        self.subscriber = Subscriber()
        self.master = Master(config, None, self.subscriber.joined, self.subscriber.left)
        self.subscriber.master = self.master
        self.metrics = MasterMetrics(self.master, self.subscriber.counts)
        self._pumping: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Let things lapse in time; close every socket at the end."""
        ticking = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticking.cancel()
            self.subscriber.close()

    async def _tick(self) -> None:
        while True:
            self.master.expire(time.monotonic())
            await asyncio.sleep(_TICK_S)

    def register(self, info: InstanceInfo, lease_s: float | None = None) -> LeaseAnswer:
        answer = self.master.register(info, time.monotonic(), lease_s)
        self._pump_soon()
        return answer

    def heartbeat(self, beat: Heartbeat) -> LeaseAnswer:
        answer = self.master.heartbeat(beat, time.monotonic())
        self._pump_soon()
        return answer

    def deregister(self, name: InstanceName) -> LeaseAnswer:
        return self.master.deregister(name, time.monotonic())

    def drain(self, name: InstanceName) -> LeaseAnswer:
        return self.master.drain(name, time.monotonic())

    def finished(self, body: FinishedReports) -> LeaseAnswer:
        now = time.monotonic()
        for report in body.reports:
            self.master.finished(report, now)
        self._pump_soon()
        return LeaseAnswer()

    def schedule(self, request: ScheduleRequest) -> Placement | Ticket:
        """A placement, or a ticket for `wait`."""
        start = time.monotonic()
        placed = self.master.schedule(request, start)
        self.metrics.schedule.observe(time.monotonic() - start)
        return placed

    async def wait(self, ticket: Ticket, left: asyncio.Future[Any]) -> Placement | None:
        """The placement of a waiting request, or its error raised; None if `left` came first."""
        ended = asyncio.Event()
        ticket.wake = ended.set
        if ticket.outcome is None:
            waiting = asyncio.ensure_future(ended.wait())
            try:
                await asyncio.wait({waiting, left}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
                self.master.cancel(ticket)
        if isinstance(ticket.outcome, TriptychError):
            raise ticket.outcome
        return ticket.outcome

    def _pump_soon(self) -> None:
        """Waiting requests are tried once for many reports that come together."""
        if self._pumping is None and self.master.waiting:
            self._pumping = asyncio.get_running_loop().call_later(_PUMP_S, self._pump)

    def _pump(self) -> None:
        self._pumping = None
        self.master.pump(time.monotonic())
