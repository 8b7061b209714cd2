"""Consumers that wait for entries which are not stored yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass

from connectors.messages import ECLost, ECWant
from connectors.side_server import Sender

_MAX_WANTS = 100_000
_MAX_WAIT_S = 3600.0
_LOST_S = 2.0  # how long a call that brings the item may come after a consumer that wants it


@dataclass
class Want:
    query: int
    consumer: Sender
    since: float
    deadline: float


class WaitQueue:
    """By entry, in the order of asking."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: OrderedDict[str, list[Want]] = OrderedDict()

    def __contains__(self, mm_hash: str) -> bool:
        return mm_hash in self._waiting

    def __len__(self) -> int:
        """Entries that are waited for."""
        return len(self._waiting)

    def made(self, message: ECWant, consumer: Sender) -> Want:
        now = self._clock()
        return Want(message.query, consumer, now, now + min(message.wait_s, _MAX_WAIT_S))

    def add(self, mm_hash: str, want: Want) -> None:
        if sum(map(len, self._waiting.values())) >= _MAX_WANTS:
            # Those that waited longest hear nothing: their loads end by their own timeout.
            self._waiting.popitem(last=False)
        self._waiting.setdefault(mm_hash, []).append(want)

    def take(self, mm_hash: str) -> list[Want]:
        """Those that still wait for an entry, which is there."""
        now = self._clock()
        return [want for want in self._waiting.pop(mm_hash, ()) if want.deadline > now]

    def forget(self, mm_hash: str, query: int, consumer: Sender) -> None:
        """Queries are numbered by each consumer for itself."""
        wants = self._waiting.get(mm_hash, ())
        self._replace(mm_hash, [w for w in wants if (w.query, w.consumer) != (query, consumer)])

    def _replace(self, mm_hash: str, wants: list[Want]) -> None:
        if wants:
            self._waiting[mm_hash] = wants
        else:
            self._waiting.pop(mm_hash, None)

    def poll(self, pending: Container[str]) -> None:
        """Forget those that wait no longer, and tell those that wait in vain: for entries which are
        not there and not `pending`."""
        now = self._clock()
        for mm_hash, wants in list(self._waiting.items()):
            lost = [w for w in wants if w.since + _LOST_S <= now and mm_hash not in pending]
            for want in lost:
                want.consumer(ECLost(want.query))
            self._replace(mm_hash, [w for w in wants if w.deadline > now and w not in lost])
