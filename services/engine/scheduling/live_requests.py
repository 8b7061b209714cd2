"""The requests that an engine has taken and not ended: by name and choice, and by deadline."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from services.engine.scheduling.request import Request, RequestKey

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
        # Only once it has doubled: so the rebuilding costs each deadline little.
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


class LiveRequests:
    """A request is here as long as one of its choices is."""

    def __init__(self) -> None:
        self._requests: dict[str, dict[int, Request]] = {}
        self._deadlines = Deadlines(self._is_alive, lambda: len(self._requests))

    def __len__(self) -> int:
        """Choices."""
        return sum(len(choices) for choices in self._requests.values())

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def __iter__(self) -> Iterator[Request]:
        return (request for choices in self._requests.values() for request in choices.values())

    def names(self) -> list[str]:
        return list(self._requests)

    def find(self, key: RequestKey) -> Request | None:
        return self._requests.get(key[0], {}).get(key[1])

    def choices(self, request_id: str) -> list[Request]:
        """All of one request, [] if it is not here."""
        return list(self._requests.get(request_id, {}).values())

    def add(self, request: Request) -> None:
        name = request.source.request_id
        # One entry for all choices, which have one deadline.
        if request.deadline is not None and name not in self._requests:
            self._deadlines.add(request.deadline, request.arrival, name)
        self._requests.setdefault(name, {})[request.index] = request

    def remove(self, request: Request) -> None:
        choices = self._requests[request.source.request_id]
        del choices[request.index]
        if not choices:
            del self._requests[request.source.request_id]

    def _is_alive(self, request_id: str, arrival: int) -> bool:
        choices = self._requests.get(request_id)
        return choices is not None and next(iter(choices.values())).arrival == arrival

    def late(self, now: float) -> list[Request]:
        """Those whose deadline has passed."""
        return [request for name in self._deadlines.due(now) for request in self.choices(name)]

    @property
    def next_deadline(self) -> float | None:
        return self._deadlines.next_time

    def check_integrity(self, queued: set[RequestKey]) -> list[str]:
        """[] if the requests here are those that are in queues."""
        known = {request.key for request in self}
        return [
            *(f"request {key} is in no queue" for key in known - queued),
            *(f"request {key} is queued but unknown" for key in queued - known),
        ]
