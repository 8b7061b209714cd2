"""Waiting for what has no event: until it is so, and no longer than it may take."""

import asyncio
import time
from collections.abc import Callable


def until(done: Callable[[], bool], what: object = "", bound_s: float = 30.0) -> None:
    """`what` is said if it takes too long."""
    deadline = time.monotonic() + bound_s
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


async def eventually(done: Callable[[], bool], bound_s: float = 15.0) -> None:
    """`until` within a loop of asyncio."""
    async with asyncio.timeout(bound_s):
        while not done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
