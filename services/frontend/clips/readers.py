"""Processes in which FFmpeg reads clips: so many at a time, kept for the next clip; and the threads
that wait for them."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InvalidRequest, TriptychError, Unavailable
from services.frontend.clips.limits import ClipLimits
from services.frontend.clips.reader import ClipReader
from services.frontend.clips.sampling import Clip

Image = NDArray[np.uint8]
Samples = NDArray[np.float32]
_NO_PYAV = (
    "this server has no PyAV to decode clips and compressed audio with: install the extra 'video'"
    " (pip install 'triptych[video]') on proxies and encoders"
)
_OTHER_SYSTEM = (
    "servers on this operating system read no clips and no compressed audio; those on Linux do"
)
T = TypeVar("T")
BUSY = "too many clips and audio files wait to be read (--video-readers)"


class ClipReaders:
    """Safe for several threads. The first clips start the processes; `close` ends them."""

    def __init__(self, limits: ClipLimits, most: int) -> None:
        self.limits = limits
        self.most = most
        self._free: list[ClipReader] = []
        self._busy: set[ClipReader] = set()
        self._closed = False
        self._changed = threading.Condition()

    def probe(self, data: bytes, param: str | None = None) -> Clip:
        """What `frames` will find. `InvalidRequest` (`param`) if this is no clip, a broken one or
        one beyond the limits; `Unavailable` if the processes are busy for too long."""
        with self._reader(param) as reader:
            return reader.probe(data)

    def frames(self, data: bytes, clip: Clip, wanted: Sequence[int]) -> Iterator[Image]:
        """uint8[height, width, 3] of each index of `wanted`, which ascends, upright and in RGB.
        Errors as of `probe`."""
        with self._reader(None) as reader:
            yield from reader.frames(data, clip, wanted)

    def sound(
        self, data: bytes, most_seconds: float, param: str | None = None
    ) -> tuple[int, Samples]:
        """(samples a second, float32[n] in mono) of compressed audio. Errors as of `probe`, with a
        code of their own, also if it lasts longer."""
        try:
            with self._reader(param) as reader:
                return reader.sound(data, most_seconds)
        except InvalidRequest as error:
            if error.code == "invalid_video":  # of time and memory, which are bounded alike
                error.code = "invalid_audio"
            raise

    def close(self) -> None:
        with self._changed:
            self._closed = True
            # Threads still use these: each is released when it comes `_back`.
            for reader in self._busy:
                reader.close()
            for reader in self._free:
                reader.release()
            self._free.clear()
            self._changed.notify_all()

    @contextmanager
    def _reader(self, param: str | None) -> Iterator[ClipReader]:
        # Looked for, not imported: FFmpeg is loaded in the child alone.
        if importlib.util.find_spec("av") is None:
            raise InvalidRequest(_NO_PYAV, param=param, code="unsupported_media")
        if not hasattr(os, "memfd_create"):
            raise InvalidRequest(_OTHER_SYSTEM, param=param, code="unsupported_media")
        reader = self._taken()
        try:
            yield reader
        except TriptychError as error:
            error.param = param
            raise
        finally:
            self._back(reader)

    def _taken(self) -> ClipReader:
        with self._changed:
            if not self._changed.wait_for(self._has_turn, self.limits.read_s):
                raise Unavailable(BUSY)
            if self._closed:
                raise Unavailable("this server ends")
            # The kernel may have killed an idle one for its memory.
            while self._free and not self._free[-1].alive:
                self._free.pop().release()
            reader = self._free.pop() if self._free else ClipReader(self.limits)
            self._busy.add(reader)
            return reader

    def _has_turn(self) -> bool:
        return self._closed or bool(self._free) or len(self._busy) < self.most

    def _back(self, reader: ClipReader) -> None:
        with self._changed:
            self._busy.discard(reader)
            if reader.alive and not self._closed:
                self._free.append(reader)
            else:
                reader.release()
            self._changed.notify_all()


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
