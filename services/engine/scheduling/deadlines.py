"""When requests must have ended."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

_SPARE = 1024


@dataclass
class Deadlines:
    """Deadlines by request id; those of requests that are not `alive` are dropped in time, so that
    memory stays proportional to the requests there are, however late their deadlines."""

    alive: Callable[[str, int], bool]
    count: Callable[[], int]
    _heap: list[tuple[float, int, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, time: float, number: int, request_id: str) -> None:
        """`number` tells requests apart that have used the same id."""
        heapq.heappush(self._heap, (time, number, request_id))
        if len(self._heap) > 2 * self.count() + _SPARE:
            self._heap = [entry for entry in self._heap if self.alive(entry[2], entry[1])]
            heapq.heapify(self._heap)

    def due(self, now: float) -> list[str]:
        """Requests whose deadline has passed."""
        found: list[str] = []
        while self._heap and self._heap[0][0] <= now:
            _, number, request_id = heapq.heappop(self._heap)
            if self.alive(request_id, number):
                found.append(request_id)
        return found

    @property
    def next_time(self) -> float | None:
        """The next deadline of a request that is alive."""
        while self._heap and not self.alive(self._heap[0][2], self._heap[0][1]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
