"""A request that waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from protocol.errors import TriptychError

DEFAULT_PRIORITY = 50
RequestT = TypeVar("RequestT")
OutcomeT = TypeVar("OutcomeT")


@dataclass(eq=False, slots=True)
class Ticket(Generic[RequestT, OutcomeT]):
    """A waiting request of any kind, and what a queue needs to know of it."""

    request: RequestT  # what waits
    tenant: str  # whose fair share it counts against, by the name of an API key
    priority: int  # higher is served earlier
    cost: float  # what serving it takes of its tenant's share, in prompt tokens
    since: float  # when it began to wait (ms)
    until: float  # when its wait ends at the latest (ms)
    lane: str = ""  # share of the queue it stands in; the queue sets it
    outcome: OutcomeT | TriptychError | None = None  # how the wait has ended, None until then
    _told: list[Callable[[], None]] = field(default_factory=list)

    def when_ended(self, tell: Callable[[], None]) -> None:
        """`tell` is called once the wait has ended: at once if it already has, so that a
        caller that looks at a ticket late does not wait for ever."""
        if self.outcome is not None:
            tell()
        else:
            self._told.append(tell)

    def end(self, outcome: OutcomeT | TriptychError) -> None:
        """The wait has ended."""
        self.outcome = outcome
        # Taken out first: each is told once, even if it ends the ticket again.
        told, self._told = self._told, []
        for tell in told:
            tell()
