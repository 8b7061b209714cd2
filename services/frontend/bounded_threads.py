"""Threads of their own for work that may take long, with bounds on how much waits and how long."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from protocol.errors import Unavailable

T = TypeVar("T")


class BoundedThreads:
    """Work that its caller gives up is not begun."""

    def __init__(self, threads: int, waiting: int, patience_s: float, busy: str) -> None:
        """`waiting`: how much work may wait beside that under way. `patience_s`: work that has
        waited for longer when its turn comes is not begun. `busy`: what errors say then."""
        self._pool = ThreadPoolExecutor(threads, "bounded")
        self._room = threading.Semaphore(threads + waiting)
        self._patience_s = patience_s
        self._busy = busy

    async def run(self, work: Callable[[], T]) -> T:
        """`Unavailable` if too much waits already, or this has waited for too long."""
        if not self._room.acquire(blocking=False):
            raise Unavailable(self._busy)
        until = time.monotonic() + self._patience_s

        def in_time() -> T:
            if time.monotonic() > until:
                raise Unavailable(self._busy)
            return work()

        future = self._pool.submit(in_time)
        future.add_done_callback(lambda _: self._room.release())
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
