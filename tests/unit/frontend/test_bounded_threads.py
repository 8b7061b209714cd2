"""Work in threads, of which not too much waits, nor for too long."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from protocol.errors import Unavailable
from services.frontend.media.off_loop import BoundedThreads
from tests.conftest import Pass
from tests.support.waiting import eventually


@pytest.fixture
def threads() -> Iterator[BoundedThreads]:
    made = BoundedThreads(threads=1, waiting=1, patience_s=20.0, busy="too much waits")
    yield made
    made.close()


async def test_no_more_waits_than_may(threads: BoundedThreads) -> None:
    end = threading.Event()
    first, second = (asyncio.ensure_future(threads.run(end.wait)) for _ in range(2))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="too much waits"):
        await threads.run(end.wait)
    end.set()
    assert await asyncio.gather(first, second) == [True, True]
    assert await threads.run(lambda: 3) == 3


async def test_what_has_waited_for_too_long_is_not_begun(
    threads: BoundedThreads, passes: Pass
) -> None:
    begun, end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        end.wait()

    first = asyncio.ensure_future(threads.run(work))
    await eventually(begun.is_set)
    late = asyncio.ensure_future(threads.run(lambda: 3))
    await asyncio.sleep(0)
    passes(21.0)
    end.set()
    await first
    with pytest.raises(Unavailable, match="too much waits"):
        await late


async def test_what_is_given_up_is_not_begun(threads: BoundedThreads) -> None:
    end, done = threading.Event(), list[int]()
    first = asyncio.ensure_future(threads.run(end.wait))
    given_up = asyncio.ensure_future(threads.run(lambda: done.append(1)))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait([given_up])
    end.set()
    await first
    await threads.run(lambda: done.append(2))
    assert done == [2]
