"""The end of a process that is told to end before it serves."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")
_STATUS = 128 + signal.SIGTERM  # as shells tell of a process that the signal has ended


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM raises `SystemExit` in the main thread, which alone may enter this: status 143. An
    event loop replaces this handler by that of `closed_by_sigterm`, a server by its own.

    Without a handler the signal ends any process but the first of a container, to which the kernel
    does not deliver it.
    """
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def closed_by_sigterm(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, which SIGTERM cancels; once all it has opened is closed, `SystemExit`
    is raised as of `ended_by_sigterm`.

    An exception that a signal raises in the midst of any callback would lose what that callback was
    to tell: a worker would wait without end for the end of its engine.
    """
    loop, task, told = asyncio.get_running_loop(), asyncio.current_task(), False
    assert task is not None

    def cancel() -> None:
        nonlocal told
        if not told:  # a second signal would break off the closing
            told = True
            task.cancel()

    loop.add_signal_handler(signal.SIGTERM, cancel)
    try:
        return await work
    except asyncio.CancelledError:
        if not told:
            raise
        raise SystemExit(_STATUS) from None
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)
