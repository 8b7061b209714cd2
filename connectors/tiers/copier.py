"""Copies that a thread of a store makes, and what the core may know of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from connectors.tiers.base import Copied, TierCopy

logger = logging.getLogger(__name__)


class ThreadCopy(TierCopy):
    """One call for each part of a copy; a part that raises has copied none of its blocks."""

    def __init__(self, parts: Sequence[tuple[int, Future[Sequence[bool]]]]) -> None:
        """`parts`: how many blocks each has, and what becomes of them."""
        self._parts = parts
        self._begun = self._ended = time.monotonic()
        for _, future in parts:
            future.add_done_callback(self._end)

    def _end(self, _: Future[Sequence[bool]]) -> None:
        self._ended = time.monotonic()

    def poll(self) -> Copied | None:
        if not all(future.done() for _, future in self._parts):
            return None
        whole = [good for count, future in self._parts for good in _results(count, future)]
        return Copied(whole, max(0.0, self._ended - self._begun))


def _results(count: int, future: Future[Sequence[bool]]) -> Sequence[bool]:
    if (error := future.exception()) is not None:
        logger.error("KV blocks could not be copied", exc_info=error)
        return [False] * count
    return future.result()


class Copier:
    """`threads` that a store copies in. With one, what is asked for first is done first."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._threads = threads

    def start(self, count: int, copy: Callable[[range], Sequence[bool]]) -> ThreadCopy:
        """Have `copy` called with every number below `count`, shared out over the threads."""
        share = -(-count // self._threads)
        ranges = [range(n, min(n + share, count)) for n in range(0, count, share)]
        return ThreadCopy([(len(mine), self._pool.submit(copy, mine)) for mine in ranges])

    def call(self, do: Callable[[], None]) -> None:
        """Have it done after what was asked for before."""
        self._pool.submit(do)

    def close(self) -> None:
        """Waits for all that was asked for: what was removed must not be found again."""
        self._pool.shutdown()
