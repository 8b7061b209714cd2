"""When the stages of traced requests begin and end, as seen between the parts of a step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

from services.engine.messages import Stage
from services.engine.scheduling.seams import Clock

_Work = TypeVar("_Work", bound=Hashable)


_MOST = 64  # pieces of work that are traced at once: a look costs a step some 10 us for each


class StageTimes(Generic[_Work]):
    """Looks at the work of traced requests alone, so that others cost nothing. Clients decide what
    is traced: of more at once than a step should look at, the later are not.

    `stages_of` tells which stages of some work are in progress, None once the work has ended.
    """

    def __init__(self, clock: Clock, stages_of: Callable[[_Work], Collection[str] | None]) -> None:
        self._clock = clock
        self._stages_of = stages_of
        self._begun: dict[tuple[str, _Work], dict[str, float]] = {}
        self._over: list[Stage] = []

    def watch(self, request_id: str, work: _Work) -> None:
        """Note the stages of this request's work from here on, unless too many are traced."""
        if len(self._begun) < _MOST:
            self._begun[request_id, work] = {}
            self._look_at(request_id, work, self._clock())

    def look(self) -> None:
        """Note what has begun and ended since the last look."""
        if not self._begun:
            return
        now = self._clock()
        for request_id, work in list(self._begun):
            self._look_at(request_id, work, now)

    def _look_at(self, request_id: str, work: _Work, now: float) -> None:
        begun, stages = self._begun[request_id, work], self._stages_of(work)
        going_on = stages or ()
        for name in [name for name in begun if name not in going_on]:
            self._over.append(Stage(request_id, name, begun.pop(name), now))
        for name in going_on:
            begun.setdefault(name, now)
        if stages is None:
            del self._begun[request_id, work]

    def take(self) -> list[Stage]:
        """The stages that have ended since the last time."""
        over, self._over = self._over, []
        return over
