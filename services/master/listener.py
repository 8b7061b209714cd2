"""What a master tells other parts of its process."""

from __future__ import annotations

from protocol.placement import Finished, ScheduleRequest
from protocol.registry import InstanceInfo
from services.master.fleet.changelog import FleetListener
from services.master.placement.reservation import Reservation


class MasterListener(FleetListener):
    """Is told of workers and of requests. Its methods do nothing: a subclass overrides some."""

    def placed(self, request: ScheduleRequest, held: Reservation, now_ms: float) -> None:
        """A request is placed, and holds so much."""

    def over(self, report: Finished) -> None:
        """A stage of a request has ended."""

    def leads(self) -> bool:
        """Whether this master, of those that share the fleet, decides which worker serves which
        role."""
        return True

    def moved(self, info: InstanceInfo, now_ms: float) -> None:
        """A worker is to serve another role, by a decision made here."""

    def finished_elsewhere(self, report: Finished, now_ms: float) -> list[str]:
        """A report of a request that was not placed here; the workers that have done their part in
        it."""
        return []
