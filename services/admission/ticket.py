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
    """A waiting request of any kind, and what a queue needs to know of it.

    `tenant`: whose fair share the request counts against, by the name of an API key.
    `priority`: higher is served earlier.
    `cost`: what serving it takes of its tenant's share, in prompt tokens.
    `since`, `until`: it waits from then on, and no longer than until then (ms).
    `lane`: the share of the queue it stands in; the queue sets it.
    `outcome`: how the wait has ended, None until then.
    """

    request: RequestT
    tenant: str
    priority: int
    cost: float
    since: float
    until: float
    lane: str = ""
    outcome: OutcomeT | TriptychError | None = None
    _told: list[Callable[[], None]] = field(default_factory=list)

    def when_ended(self, tell: Callable[[], None]) -> None:
        """`tell` is called once the wait is over: at once if it is already, so that nobody who
        looks at a ticket late waits for ever."""
        if self.outcome is not None:
            tell()
        else:
            self._told.append(tell)

    def end(self, outcome: OutcomeT | TriptychError) -> None:
        """The wait is over."""
        self.outcome = outcome
        told, self._told = self._told, []
        for tell in told:
            tell()
