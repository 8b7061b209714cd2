"""One timer for deadlines that move."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from proxy.upstream.time_limits import Alarm, unhurried


class Timer:
    def __init__(self, at: float, ring: Callable[[], None]) -> None:
        self.at, self.ring = at, ring
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """A clock that rings its timers as it is moved."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, ring: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now + seconds, ring))
        return self.timers[-1]

    @property
    def pending(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def go_to(self, now: float) -> None:
        self.now = now
        for timer in self.pending:
            if timer.at <= now:
                self.timers.remove(timer)
                timer.ring()


def made() -> tuple[Any, list[float], Alarm]:
    loop, rung = Loop(), list[float]()
    given: Any = loop
    clock: asyncio.AbstractEventLoop = given
    return loop, rung, Alarm(clock, lambda: rung.append(loop.now))


def test_a_deadline_that_moves_needs_one_timer() -> None:
    loop, rung, alarm = made()
    for now in range(10):
        loop.now = float(now)
        alarm.set(20.0)
    assert len(loop.timers) == 1
    loop.go_to(20.0)  # as set first
    assert rung == [] and len(loop.pending) == 1
    loop.go_to(29.0)
    assert rung == [29.0] and loop.pending == []


def test_an_earlier_deadline_does_not_wait_for_the_timer() -> None:
    loop, rung, alarm = made()
    alarm.set(600.0)
    alarm.set(2.0)
    loop.go_to(2.0)
    assert rung == [2.0] and loop.pending == []


def test_a_deadline_that_moves_by_less_than_a_second_does_not_ring_early() -> None:
    loop, rung, alarm = made()
    alarm.set(2.0)
    loop.now = 0.5
    alarm.set(2.0)
    loop.go_to(2.0)
    assert rung == []
    loop.go_to(2.5)
    assert rung == [2.5] and loop.pending == []


def test_what_is_stopped_does_not_ring_and_may_be_set_again() -> None:
    loop, rung, alarm = made()
    alarm.set(5.0)
    alarm.stop()
    loop.go_to(5.0)
    assert rung == [] and loop.pending == []
    alarm.set(5.0)
    loop.go_to(10.0)
    assert rung == [10.0]


def test_a_closed_alarm_leaves_no_timer() -> None:
    loop, _, alarm = made()
    alarm.set(5.0)
    alarm.close()
    assert loop.pending == []


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
