"""Pictures on their way to the vision model: prepared in threads, some of them ahead."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from protocol.types import EncodeItem
from services.engine.scheduling.seams import Prepared

_NICE = 10
_RUNS_AHEAD = 2  # prepared pictures, in runs of the largest size
_PATCHES_PER_TOKEN = 4  # of most models


class ImagePrefetch:
    """By mm_hash, in the order of asking. A prepared picture is much larger than its bytes: those
    ahead of the vision model have `ahead` tokens at most, or are one, beside those that a consumer
    waits for."""

    def __init__(
        self,
        prepare: Callable[[EncodeItem], Prepared],
        ahead: int,
        wake: Callable[[], None],
        threads: int = 2,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`wake` is called, from another thread, whenever a picture is prepared; `ended` when none
        will be any more."""
        self._prepare = prepare
        self._ended = ended
        self._ahead = ahead
        self._wake = wake
        self._pool = ThreadPoolExecutor(threads, "prepare", initializer=_stand_back)
        self._waiting: dict[str, EncodeItem] = {}
        self._begun: dict[str, tuple[int, Future[Prepared]]] = {}

    def add(self, item: EncodeItem) -> None:
        self._waiting[item.mm_hash] = item

    def discard(self, mm_hash: str) -> None:
        """It is not needed any more, or has been taken."""
        self._waiting.pop(mm_hash, None)
        begun = self._begun.pop(mm_hash, None)
        if begun is not None:
            begun[1].cancel()

    def advance(self, wanted: Callable[[str], bool] | None) -> None:
        """Begin what may begin by now; `wanted`, if not all is alike, says what must."""
        tokens = sum(tokens for tokens, _ in self._begun.values())
        for mm_hash, item in list(self._waiting.items()):
            if not tokens or tokens + item.length <= self._ahead or (wanted and wanted(mm_hash)):
                tokens += item.length
                self._begin(item)
            elif wanted is None:
                return

    def _begin(self, item: EncodeItem) -> None:
        future = self._pool.submit(self._prepare, self._waiting.pop(item.mm_hash))
        future.add_done_callback(lambda _: self._wake())
        self._begun[item.mm_hash] = item.length, future

    def ready(self) -> list[tuple[str, Prepared | BaseException]]:
        """What is prepared, or why it cannot be, oldest first."""
        # `exception` would raise for one that was cancelled, but `discard` forgets those.
        done = [(name, future) for name, (_, future) in self._begun.items() if future.done()]
        return [(name, future.exception() or future.result()) for name, future in done]

    def close(self) -> None:
        # Not waited for: reading a clip may take long. `ended` ends the processes that read.
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._ended()


def tokens_ahead(max_patches: int) -> int:
    """Of pictures that are prepared while the vision model takes `max_patches` in a run."""
    return _RUNS_AHEAD * max_patches // _PATCHES_PER_TOKEN


def _stand_back() -> None:
    """Where cores are few, pictures that wait to be prepared must not slow down the run of those
    that are: this thread takes what is left (Linux counts priorities by thread)."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
