"""How tasks are ended, work that is done at once, or beside the event loop, and loops that run as
long as their process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from protocol.errors import TriptychError

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0  # between two starts of a supervised loop


async def ended(task: asyncio.Future[Any], *expected: type[Exception]) -> None:
    """Cancel `task` and wait until it has ended, with any outcome; an error that is neither of our
    tree nor `expected` is logged.

    If the caller is cancelled meanwhile that comes through, and the task ends by itself.
    """

    def heard(task: asyncio.Future[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, (TriptychError, *expected)):
            logger.error("a task failed while it was being cancelled", exc_info=error)

    task.cancel()
    # A callback, not an await: the caller may be cancelled before the task has ended.
    task.add_done_callback(heard)
    await asyncio.wait({task})


async def all_of(works: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """The results, in order, of work that is done at the same time; the first failure ends it all
    and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failures:
        # An answer has one error; those behind it mostly follow from it.
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


class Threads:
    """Work beside the event loop. No more of it is done at once than there is room for: prompts,
    grammars and pictures of requests need the same threads."""

    def __init__(self, at_once: int) -> None:
        self._room = asyncio.Semaphore(at_once)

    async def run(self, work: Callable[[], _T]) -> _T:
        """What `work` returns; work that has not begun when the caller is cancelled is not done."""
        await self._room.acquire()
        thread = asyncio.ensure_future(asyncio.to_thread(work))
        # A thread cannot be called back: one whose caller has left has its place until it is done.
        thread.add_done_callback(self._ended)
        return await asyncio.shield(thread)

    def _ended(self, thread: asyncio.Future[Any]) -> None:
        self._room.release()
        # Looked at, or asyncio would log an error that no caller waits for any more.
        if not thread.cancelled():
            thread.exception()


async def supervised(name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """`run` until it returns. An error that it lets through is logged, and it is begun again after
    a pause, a longer one each time unless it had lasted; so one bad moment never ends it for good.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        begun = time.monotonic()
        try:
            await run()
            return
        except Exception:
            # It had worked for a while: a new fault, not the old one again.
            if time.monotonic() - begun > 2 * _LAST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
            logger.exception("%s has failed, starting again in %.1f s", name, pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
