"""What consumers have been granted: an entry of a store, to be read within a lease's time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from connectors.ec.wait_queue import Want
from connectors.leases import LeaseTable
from connectors.messages import ECGrant, ECTensor
from connectors.side_server import Sender


@dataclass(eq=False)
class StoredEntry:
    """Where an entry lies in the store's memory. `readers` counts grants: while there are any, the
    bytes stay as they are, even if the entry is evicted."""

    offset: int
    tensors: list[ECTensor]
    readers: int = 0


@dataclass(frozen=True)
class _Granted:
    """What a consumer may read, and as what it asked."""

    entry: StoredEntry
    want: Want


class Grants:
    """By number. A consumer asks after reading whether its grant held all the time; one that says
    nothing loses it with the lease."""

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self._leases: LeaseTable[int] = LeaseTable(lease_s, clock)
        # In an `ECDone` 0 says that there was no grant.
        self._numbers = itertools.count(1)
        self._granted: dict[int, _Granted] = {}

    def __len__(self) -> int:
        return len(self._granted)

    @property
    def expired(self) -> int:
        """Grants whose consumers said nothing in time."""
        return self._leases.expired

    def add(self, entry: StoredEntry, want: Want) -> None:
        """Pin an entry for a consumer, and tell it."""
        number = next(self._numbers)
        self._leases.grant(number)
        self._granted[number] = _Granted(entry, want)
        entry.readers += 1
        want.consumer(ECGrant(want.query, number, entry.tensors))

    def end(self, number: int) -> bool:
        """The consumer has read; whether the grant held until here."""
        held = self._leases.release(number)
        if held:
            self._forget(number)
        return held

    def withdraw(self, query: int, consumer: Sender) -> None:
        """A consumer gave its question up, while a grant may have been on its way to it."""
        for number, granted in list(self._granted.items()):
            if (granted.want.query, granted.want.consumer) == (query, consumer):
                self._leases.release(number)
                self._forget(number)

    def expire(self) -> None:
        for number in self._leases.expire():
            self._forget(number)

    def _forget(self, number: int) -> None:
        self._granted.pop(number).entry.readers -= 1

    def check_integrity(self, readers: int) -> list[str]:
        """`readers` as the entries count them."""
        if readers == len(self._granted) == len(self._leases):
            return []
        return [f"EC entries have {readers} readers, {len(self._leases)} grants are open"]
