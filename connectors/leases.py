"""Leases: who holds what until when, on this process's monotonic clock.

A lease has a key, an owner and a generation; it ends by release or, if it is not renewed, by
expiry, which is counted. Generations never repeat and begin at random, so a late message about an
earlier lease of the same key, or of another process, is told apart.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass
class Lease:
    """`deadline` on the monotonic clock; None never lapses (its holder is in this process)."""

    generation: int
    deadline: float | None


class LeaseTable(Generic[Key]):
    """Leases of `seconds` by key. `clock` is replaced in tests."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self.expired = 0
        self._clock = clock
        self._leases: dict[Key, Lease] = {}
        # From 1, as 0 in a handle stands for any; below 2**63, as handles carry them as int64.
        self._generations = itertools.count(1 + secrets.randbits(62))

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, key: Key) -> bool:
        return key in self._leases

    def grant(self, key: Key, *, lapses: bool = True) -> int:
        """Start a lease, replacing an earlier one of the key; returns its generation."""
        deadline = self._clock() + self.seconds if lapses else None
        lease = self._leases[key] = Lease(next(self._generations), deadline)
        return lease.generation

    def start_clock(self, key: Key) -> None:
        """From here on the lease lapses unless it is renewed."""
        lease = self._leases.get(key)
        if lease is not None and lease.deadline is None:
            lease.deadline = self._clock() + self.seconds

    def renew(self, key: Key) -> bool:
        """Put the deadline off to a whole lease from here; False if there is no such lease."""
        # One that has lapsed since the last `expire` is renewed: what it protects is still held.
        lease = self._leases.get(key)
        if lease is None:
            return False
        if lease.deadline is not None:
            lease.deadline = self._clock() + self.seconds
        return True

    def holds(self, key: Key, generation: int) -> bool:
        """Whether this very lease is still there."""
        lease = self._leases.get(key)
        return lease is not None and lease.generation == generation

    def generation(self, key: Key) -> int:
        return self._leases[key].generation

    def release(self, key: Key) -> bool:
        """End a lease; False if it had ended already."""
        return self._leases.pop(key, None) is not None

    def expire(self) -> list[Key]:
        """End, count and return the leases that have lapsed."""
        now = self._clock()
        lapsed = [
            key
            for key, lease in self._leases.items()
            if lease.deadline is not None and lease.deadline <= now
        ]
        for key in lapsed:
            del self._leases[key]
        self.expired += len(lapsed)
        return lapsed

    def keys(self) -> list[Key]:
        return list(self._leases)
