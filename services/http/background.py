"""Loops that run for as long as their process does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0


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
            if time.monotonic() - begun > 2 * _LAST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
            logger.exception("%s has failed, starting again in %.1f s", name, pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
