"""Who is told of what a master does, and what it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from protocol.registry import Finished, InstanceInfo, ScheduleRequest
from services.master.fleet.changelog import FleetListener
from services.master.placement.reservation import Reservation


class MasterListener(FleetListener):
    """Of requests too. Does nothing; a subclass overrides what it wants to be told of."""

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


@dataclass
class Totals:
    """Counts since the start."""

    placed: int = 0  # requests, each time they were
    hit_tokens: int = 0  # of these, cached where they were placed
    prompt_tokens: int = 0  # of these, all
    given_up: int = 0  # requests whose end was not reported
    lapsed: int = 0  # workers whose lease has
    # pictures, by where their embeddings come from
    items: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # requests, by error code
