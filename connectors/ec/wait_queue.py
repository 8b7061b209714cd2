"""Consumers that wait for entries which are not stored yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass

from connectors.messages import ECLost, ECWant
from connectors.side_channel import Sender

_MAX_WANTS = 100_000
_MAX_WAIT_S = 3600.0
_LOST_S = 2.0  # how long a call that brings the item may come after a consumer that wants it


@dataclass
class Want:
    query: int
    consumer: Sender
    since: float
    deadline: float


class Wants:
    """By entry, in the order of asking."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wants: OrderedDict[str, list[Want]] = OrderedDict()

    def __contains__(self, mm_hash: str) -> bool:
        return mm_hash in self._wants

    def __len__(self) -> int:
        """Entries that are waited for."""
        return len(self._wants)

    def made(self, message: ECWant, consumer: Sender) -> Want:
        now = self._clock()
        return Want(message.query, consumer, now, now + min(message.wait_s, _MAX_WAIT_S))

    def add(self, mm_hash: str, want: Want) -> None:
        if sum(map(len, self._wants.values())) >= _MAX_WANTS:
            self._wants.popitem(last=False)
        self._wants.setdefault(mm_hash, []).append(want)

    def take(self, mm_hash: str) -> list[Want]:
        """Those that still wait for an entry, which is there."""
        now = self._clock()
        return [want for want in self._wants.pop(mm_hash, ()) if want.deadline > now]

    def forget(self, mm_hash: str, query: int, consumer: Sender) -> None:
        """Queries are numbered by each consumer for itself."""
        wants = self._wants.get(mm_hash, ())
        self._keep(mm_hash, [w for w in wants if (w.query, w.consumer) != (query, consumer)])

    def _keep(self, mm_hash: str, wants: list[Want]) -> None:
        if wants:
            self._wants[mm_hash] = wants
        else:
            self._wants.pop(mm_hash, None)

    def poll(self, pending: Container[str]) -> None:
        """Forget those that wait no longer, and tell those that wait in vain: for entries which are
        not there and not `pending`."""
        now = self._clock()
        for mm_hash, wants in list(self._wants.items()):
            lost = [w for w in wants if w.since + _LOST_S <= now and mm_hash not in pending]
            for want in lost:
                want.consumer(ECLost(want.query))
            self._keep(mm_hash, [w for w in wants if w.deadline > now and w not in lost])
