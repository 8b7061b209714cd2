"""What is late here is not the one that is waited for."""

import asyncio
import time

import pytest

from proxy.upstream.time_limits import unhurried


async def turns(count: int) -> str:
    for _ in range(count):
        await asyncio.sleep(0)
    return "done"


async def test_a_loop_that_is_held_up_does_not_use_up_the_time() -> None:
    asyncio.get_running_loop().call_soon(time.sleep, 0.3)
    assert await unhurried(turns(4), 0.1) == "done"


async def test_what_does_not_end_is_given_up_and_cancelled() -> None:
    cancelled = asyncio.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(TimeoutError):
        await unhurried(never(), 0.05)
    await asyncio.wait_for(cancelled.wait(), 5)


async def test_an_error_comes_through_at_once() -> None:
    async def fails() -> None:
        raise ConnectionRefusedError

    with pytest.raises(ConnectionRefusedError):
        await unhurried(fails(), 60.0)
