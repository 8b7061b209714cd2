"""A real master that places the requests of a proxy before scripted workers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Literal

from protocol.registry import InstanceInfo
from proxy.fleet.fleet_watcher import FleetWatcher
from proxy.metrics import ProxyMetrics
from proxy.placement.by_master import MasterPlanner
from proxy.placement.master_client import MasterClient, Reporter
from proxy.placement.own_view import OwnView
from proxy.placement.planner import Need, Plan
from proxy.request_state import RequestState
from tests.support.live_masters import Master
from tests.support.waiting import eventually

ROLES: tuple[Literal["encode", "prefill", "decode"], ...] = ("encode", "prefill", "decode")


class NotingPlanner(MasterPlanner):
    """Keeps what it has asked, and been answered."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)  # type: ignore[arg-type]
        self.needs: list[Need] = []
        self.plans: list[Plan] = []

    async def place(self, state: RequestState, need: Need) -> Plan:
        plan = await super().place(state, need)
        self.needs.append(need)
        self.plans.append(plan)
        return plan


class Placing:
    """A fleet's workers at a master, by names as e0, p0 and d0."""

    def __init__(
        self, master: Master, link: MasterClient, dialect: Literal["tokens", "openai"]
    ) -> None:
        self.master, self._link, self._dialect = master, link, dialect
        self.planner: NotingPlanner

    def plan(self, alone: OwnView) -> NotingPlanner:
        """The planner of a proxy whose own view is `alone`."""
        fleet = alone._fleet
        for role in ROLES:
            for number, worker in enumerate(fleet.by_role[role]):
                info = InstanceInfo(
                    f"{role[0]}{number}", role, worker.url, "m", "1", dialect=self._dialect
                )
                self.master.service.register(info)
        self._watcher = FleetWatcher(self._link, fleet)
        self._reporter = Reporter(self._link)
        parts = (fleet, self._link, self._watcher, self._reporter, alone, ProxyMetrics(fleet))
        self.planner = NotingPlanner(*parts)
        return self.planner

    @contextlib.asynccontextmanager
    async def told(self) -> AsyncIterator[None]:
        """The proxy knows what the master does, and tells it of what ends."""
        assert await self._watcher.once(0.0)
        telling = asyncio.create_task(self._reporter.run())
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def over(self) -> None:
        """The master has heard the end of all requests."""
        await eventually(lambda: not len(self.master.service.master.ledger))

    def failures(self) -> dict[str, int]:
        """In a row, at the workers that have any."""
        instances = self.master.service.master.registry.instances
        return {name: one.failures for name, one in instances.items() if one.failures}

    def encoders(self, plans: Sequence[Plan]) -> list[str]:
        """The names of the encoders that these plans go to, without those named twice."""
        return sorted({one.instance_id for plan in plans for one in plan.encoders.values()})
