"""A time limit that a busy event loop does not use up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
_SLICES = 8


async def unhurried(work: Coroutine[Any, Any, _T], seconds: float) -> _T:
    """What `work` returns; `TimeoutError` if it takes longer than `seconds`.

    The time passes in slices, and a slice has passed once the loop has had a turn after it. A loop
    that is held up for long would let timers ring before it looks at what has arrived meanwhile:
    what is late here then is this process.
    """
    task = asyncio.ensure_future(work)
    try:
        for _ in range(_SLICES):
            await asyncio.wait({task}, timeout=seconds / _SLICES)
            if task.done():
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()
