"""The requests that the entries of a store are kept for."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable

_UNNAMED = "?"
_MAX_DONE = 100_000


class Holders:
    """By entry, who it is kept for and until when.

    A request may be done with an entry before the store has heard that it will need it: that is
    remembered for a lease's time.
    """

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self.lapsed = 0
        self._lease_s = lease_s
        self._clock = clock
        self._numbers = itertools.count(1)
        self._until: dict[str, dict[str, float]] = {}
        self._done: OrderedDict[tuple[str, str], float] = OrderedDict()

    def keep(self, mm_hash: str, holder: str, until: float | None = None) -> None:
        """A stored entry is needed by a request ("" if its id is not known) from here on; `until`
        if its lease began before."""
        if self._done.pop((mm_hash, holder), None) is not None:
            return
        now = self._clock()
        until = now + self._lease_s if until is None else until
        if until <= now:
            self.lapsed += 1
            return
        name = holder or f"{_UNNAMED}{next(self._numbers)}"
        holders = self._until.setdefault(mm_hash, {})
        # The later one: an entry that was pushed out comes back with the lease that it had then,
        # and its request may have been heard of again meanwhile.
        holders[name] = max(until, holders.get(name, until))

    def done(self, mm_hash: str, holder: str) -> None:
        """A request does not need an entry any more; an unknown one stands for one whose id is
        not known."""
        holders = self._until.get(mm_hash, {})
        unnamed = (name for name in holders if name.startswith(_UNNAMED))
        name = holder if holder in holders else next(unnamed, None)
        if name is not None:
            self._end(mm_hash, name)
            return
        self._done[mm_hash, holder] = self._clock() + self._lease_s
        if len(self._done) > _MAX_DONE:
            self._done.popitem(last=False)

    def _end(self, mm_hash: str, name: str) -> None:
        holders = self._until[mm_hash]
        del holders[name]
        if not holders:
            del self._until[mm_hash]

    def holds(self, mm_hash: str) -> bool:
        return mm_hash in self._until

    def drop(self, mm_hash: str) -> dict[str, float]:
        """The entry is not stored any more; who it was kept for, and until when."""
        return self._until.pop(mm_hash, {})

    def expire(self) -> None:
        """End, and count, the leases that have lapsed."""
        now = self._clock()
        lapsed = [
            (mm_hash, name)
            for mm_hash, holders in self._until.items()
            for name, until in holders.items()
            if until <= now
        ]
        for mm_hash, name in lapsed:
            self._end(mm_hash, name)
        self.lapsed += len(lapsed)
        while self._done and next(iter(self._done.values())) <= now:
            self._done.popitem(last=False)
