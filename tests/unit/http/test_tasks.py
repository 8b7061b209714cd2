"""Ended tasks let their callers be cancelled; supervised loops begin again."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from protocol.errors import UpstreamError
from protocol.types import RequestOutput
from proxy.tokens.stages import ReadAhead, unless_failed
from proxy.upstream.patience import Patience, patiently
from services.http.tasks import ended, supervised


class Slow:
    """Work that takes its time to end when it is cancelled."""

    def __init__(self) -> None:
        self.ending = asyncio.Event()
        self.may_end = asyncio.Event()

    async def work(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ending.set()
            await self.may_end.wait()

    async def steps(self) -> AsyncIterator[list[RequestOutput]]:
        await self.work()
        yield []


async def by_ended(slow: Slow) -> None:
    task = asyncio.create_task(slow.work())
    await asyncio.sleep(0)
    await ended(task)


async def by_ahead(slow: Slow) -> None:
    steps = slow.steps()
    async with ReadAhead(steps):  # type: ignore[arg-type]
        await asyncio.sleep(0)


async def by_unless_failed(slow: Slow) -> None:
    async def fail() -> None:
        raise UpstreamError("the encoder is gone")

    await unless_failed(slow.work(), asyncio.create_task(fail()))


async def by_client(slow: Slow) -> None:
    await patiently(slow.work(), Patience(time.monotonic() + 0.01), "http://x")


@pytest.mark.parametrize("wait", [by_ended, by_ahead, by_unless_failed, by_client])
async def test_a_cancellation_comes_through(wait: Callable[[Slow], Awaitable[None]]) -> None:
    slow = Slow()
    waiting = asyncio.ensure_future(wait(slow))
    async with asyncio.timeout(5):
        await slow.ending.wait()
        waiting.cancel()
        await asyncio.sleep(0)
        slow.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting


@pytest.mark.parametrize("error", [UpstreamError("gone"), ValueError("expected")])
async def test_expected_errors_of_a_task_are_not_logged(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise error

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await ended(task, ValueError)
    assert task.done() and not caplog.records


async def test_a_bug_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise ZeroDivisionError

    await ended(asyncio.create_task(work()))
    await asyncio.sleep(0)
    assert not caplog.records  # it had not begun

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await ended(task)
    await asyncio.sleep(0)
    assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_of_two_that_fail_at_once_both_are_heard_and_the_encode_stage_is_told_of() -> None:
    """asyncio logs the error of a task that no one has asked for it."""
    begin = asyncio.Event()

    async def fail(message: str) -> None:
        await begin.wait()
        raise UpstreamError(message)

    encoding = asyncio.create_task(fail("of the encoder"))
    prefill = asyncio.create_task(fail("of prefill"))
    waiting = asyncio.create_task(unless_failed(prefill, encoding))
    await asyncio.sleep(0)
    begin.set()
    with pytest.raises(UpstreamError, match="of the encoder"):
        await waiting
    assert prefill.done() and not prefill._log_traceback


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
