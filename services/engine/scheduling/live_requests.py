"""The requests that an engine has taken and not ended: by name and choice, and by deadline."""

from __future__ import annotations

from collections.abc import Iterator

from services.engine.scheduling.deadlines import Deadlines
from services.engine.scheduling.request import Request, RequestKey


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
