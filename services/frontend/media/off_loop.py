"""Long work on media beside an event loop that has to go on: base64, and threads with bounds.

The decoder of base64 holds the interpreter's lock: 16 MB at once stop every other thread for 70 ms.
In slices, with a rest after each, a loop's turn waits for one slice at most.
"""

from __future__ import annotations

import asyncio
import binascii
import io
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from urllib.parse import unquote

from protocol.errors import Unavailable

_SLICE = 1 << 18  # characters, a multiple of 4; decoding them takes less than a millisecond
_REST_S = 0.0002  # a rest of no time would seldom let another thread have the lock


def from_base64(text: str, begin: int = 0) -> bytes:
    """What follows the first `begin` characters, which need no copy without them.
    Strict; line breaks, blanks and percent escapes, which some clients write, are undone.
    `ValueError` if it is no base64. Rests if it is long: not for an event loop's own thread."""
    try:
        return _decoded(text, begin)
    except ValueError:
        written = unquote(text[begin:])
        cleaned = "".join("".join(piece.split()) for piece in _slices(written, 0))
        return _decoded(cleaned + "=" * (-len(cleaned) % 4), 0)


def _slices(text: str, begin: int) -> Iterator[str]:
    for start in range(begin, len(text), _SLICE):
        if start > begin:
            time.sleep(_REST_S)
        yield text[start : start + _SLICE]


def _decoded(text: str, begin: int) -> bytes:
    if len(text) - begin <= _SLICE:
        return binascii.a2b_base64(text[begin:], strict_mode=True)
    data = io.BytesIO()  # gives its bytes without a copy
    padded = False
    for piece in _slices(text, begin):
        if padded:
            raise ValueError("data after the padding")
        data.write(binascii.a2b_base64(piece, strict_mode=True))
        padded = piece.endswith("=")
    return data.getvalue()


def beginning(url: str) -> bytes:
    """The first bytes of a data: URL's content; none if it is not base64 as it should be, or short:
    what it is shows when it is decoded."""
    head, _, body = url[:1024].partition(",")
    if head[:5].lower() != "data:" or not head.lower().endswith(";base64") or len(body) < 64:
        return b""
    try:
        return binascii.a2b_base64(body[:64], strict_mode=True)
    except ValueError:
        return b""


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
            # Its client has given up by now: work for it would only delay the next one.
            if time.monotonic() > until:
                raise Unavailable(self._busy)
            return work()

        future = self._pool.submit(in_time)
        # Not in `finally`: a caller that is cancelled leaves while its work still has the thread.
        future.add_done_callback(lambda _: self._room.release())
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
