"""How tasks of ours are ended."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from protocol.errors import TriptychError

logger = logging.getLogger(__name__)


async def ended(task: asyncio.Future[Any], *expected: type[Exception]) -> None:
    """Cancel `task` and wait until it is over, whatever it ends with; an error that is neither of
    our tree nor `expected` is logged.

    If the caller is cancelled meanwhile that comes through, and the task ends by itself.
    """

    def heard(task: asyncio.Future[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, (TriptychError, *expected)):
            logger.error("a task that was ended", exc_info=error)

    task.cancel()
    task.add_done_callback(heard)
    await asyncio.wait({task})
