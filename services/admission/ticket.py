"""A request that waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    `outcome`: how the wait has ended, None until then. `wake` is called once it is set.
    """

    request: RequestT
    tenant: str
    priority: int
    cost: float
    since: float
    until: float
    lane: str = ""
    outcome: OutcomeT | TriptychError | None = None
    wake: Callable[[], None] | None = None

    def end(self, outcome: OutcomeT | TriptychError) -> None:
        """The wait is over."""
        self.outcome = outcome
        if self.wake is not None:
            self.wake()
