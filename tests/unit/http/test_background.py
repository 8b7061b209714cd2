"""A loop that an error leaves is begun again."""

import asyncio
import logging

import pytest

from services.http.tasks import supervised


async def test_an_error_is_logged_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    begun = 0
    going_on = asyncio.Event()

    async def run() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise OverflowError("int too large")
        going_on.set()
        await asyncio.Event().wait()

    with caplog.at_level(logging.ERROR):
        task = asyncio.create_task(supervised("the loop", run))
        await asyncio.wait_for(going_on.wait(), 10.0)
    told = [record for record in caplog.records if "the loop has failed" in record.getMessage()]
    assert len(told) == 2 and told[0].exc_info is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_loop_that_returns_is_over() -> None:
    async def run() -> None:
        pass

    await asyncio.wait_for(supervised("the loop", run), 10.0)
