"""What a connector has done, counted."""

from __future__ import annotations

import logging
from bisect import bisect_left

import msgspec

logger = logging.getLogger(__name__)

BUCKETS_S = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Upper bounds of the histogram of transfer times."""


class TransferStats(msgspec.Struct):
    """A snapshot of what one connector has moved and holds; all but `bytes_held` only grow."""

    connector: str  # ec or kv
    transport: str  # its name
    bytes: int = 0  # bytes received
    transfers: int = 0  # transfers received
    seconds: float = 0.0  # from the first byte asked for to the last, summed
    # of these, those in which bytes moved; the rest waited for more to be made
    copy_seconds: float = 0.0
    buckets: list[int] = []  # transfers by duration, one more than `BUCKETS_S`, not cumulative
    failures: dict[str, int] = {}  # error code → transfers that failed
    leases_expired: int = 0  # leases that no consumer ended
    bytes_held: int = 0  # bytes held for peers
    evictions: int = 0  # entries evicted to make room
    hits: int = 0  # lookups that found the entry in the store
    misses: int = 0  # lookups that did not
    refused: int = 0  # messages of peers that were refused


class Meter:
    """Counts what moves; what is held is added when a snapshot is taken."""

    def __init__(self, connector: str, transport: str) -> None:
        self._stats = TransferStats(connector, transport, buckets=[0] * (len(BUCKETS_S) + 1))

    def moved(self, nbytes: int, seconds: float, copy_seconds: float | None = None) -> None:
        """A transfer into this process is complete; `copy_seconds` None: it never had to wait."""
        self._stats.bytes += nbytes
        self._stats.transfers += 1
        self._stats.seconds += seconds
        self._stats.copy_seconds += seconds if copy_seconds is None else copy_seconds
        self._stats.buckets[bisect_left(BUCKETS_S, seconds)] += 1

    def failed(self, code: str) -> None:
        """A transfer has failed for a reason of our error tree."""
        self._stats.failures[code] = self._stats.failures.get(code, 0) + 1

    def asked(self, *, hit: bool) -> None:
        """The store was asked for an entry."""
        self._stats.hits += hit
        self._stats.misses += not hit

    def snapshot(
        self, *, leases_expired: int = 0, bytes_held: int = 0, evictions: int = 0, refused: int = 0
    ) -> TransferStats:
        """`refused`: messages on the side channel that made no sense."""
        return msgspec.structs.replace(
            self._stats,
            leases_expired=leases_expired,
            bytes_held=bytes_held,
            evictions=evictions,
            refused=refused,
        )


class Refusals:
    """Counts messages of peers that make no sense; logs the first of each kind."""

    def __init__(self) -> None:
        self.count = 0
        self._logged: set[str] = set()

    def add(self, kind: str, detail: object) -> None:
        self.count += 1
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning("a message of a peer was refused, %s: %s", kind, str(detail)[:500])
