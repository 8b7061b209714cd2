"""Copies that a thread of a store makes, and what the core may know of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from connectors.tiers.base import Copied, TierCopy

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Part:
    """Whether each block is whole, and when the copy was made (monotonic)."""

    whole: Sequence[bool]
    begun: float
    ended: float


class ThreadCopy(TierCopy):
    """One call for each part of a copy; a part that raises has copied none of its blocks."""

    def __init__(self, parts: Sequence[tuple[int, Future[_Part]]]) -> None:
        """`parts`: how many blocks each has, and what becomes of them."""
        self._parts = parts

    def poll(self) -> Copied | None:
        if not all(future.done() for _, future in self._parts):
            return None
        parts = [_result(count, future) for count, future in self._parts]
        begun = min((part.begun for part in parts), default=0.0)
        ended = max((part.ended for part in parts), default=0.0)
        return Copied([good for part in parts for good in part.whole], ended - begun)


def _result(count: int, future: Future[_Part]) -> _Part:
    # Not raised: KV that is not there is computed again, which costs time only.
    if (error := future.exception()) is not None:
        logger.error("KV blocks could not be copied", exc_info=error)
        now = time.monotonic()
        return _Part([False] * count, now, now)
    return future.result()


class Copier:
    """`threads` that a store copies in. With one, what is asked for first is done first."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._threads = threads

    def start(self, count: int, copy: Callable[[range], Sequence[bool]]) -> ThreadCopy:
        """Have `copy` called with every number below `count`, shared out over the threads."""
        # Each thread has one run of the numbers: results then join in the order of the call.
        share = -(-count // self._threads)
        ranges = [range(n, min(n + share, count)) for n in range(0, count, share)]

        def part(mine: range) -> _Part:
            begun = time.monotonic()
            return _Part(copy(mine), begun, time.monotonic())

        return ThreadCopy([(len(mine), self._pool.submit(part, mine)) for mine in ranges])

    def call(self, do: Callable[[], None]) -> None:
        """Have it done after what was asked for before."""
        self._pool.submit(do)

    def close(self) -> None:
        """Waits for all that was asked for: what was removed must not be found again."""
        self._pool.shutdown()
