"""How tasks are ended, work that is done at once, and loops that run as long as their process."""

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
