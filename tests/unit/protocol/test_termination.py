"""SIGTERM before a process serves ends it once all is closed, wherever the signal finds it."""

import asyncio
import signal
from collections.abc import Callable

import pytest

from protocol.termination import closed_by_sigterm, ended_by_sigterm


def tell() -> None:
    signal.raise_signal(signal.SIGTERM)


async def waits(closed: list[str], when: Callable[[], None] | None = None) -> str:
    """Opens something, whose end is told by a callback in whose midst `when` is called."""
    ended = asyncio.Event()

    def end() -> None:
        if when is not None:
            when()
        ended.set()

    try:
        asyncio.get_running_loop().call_soon(end)
        if when is not None:
            await asyncio.sleep(30.0)
    finally:
        async with asyncio.timeout(10.0):
            await ended.wait()
        closed.append("all")
    return "done"


def test_a_signal_in_a_callback_leaves_nothing_open() -> None:
    closed: list[str] = []
    with pytest.raises(SystemExit) as end, ended_by_sigterm():
        asyncio.run(closed_by_sigterm(waits(closed, tell)))
    assert (end.value.code, closed) == (128 + signal.SIGTERM, ["all"])


def test_a_second_signal_does_not_break_off_the_closing() -> None:
    closed: list[str] = []

    async def twice() -> None:
        try:
            await waits([], tell)
        finally:
            asyncio.get_running_loop().call_soon(tell)
            await asyncio.sleep(0.1)
            closed.append("all")

    with pytest.raises(SystemExit), ended_by_sigterm():
        asyncio.run(closed_by_sigterm(twice()))
    assert closed == ["all"]


def test_without_a_signal_the_result_or_the_error_is_that_of_the_work() -> None:
    closed: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with ended_by_sigterm():
        assert asyncio.run(closed_by_sigterm(waits(closed))) == "done"

    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError), ended_by_sigterm():
        asyncio.run(closed_by_sigterm(cancelled()))
    assert signal.getsignal(signal.SIGTERM) is before


def test_before_an_event_loop_a_signal_ends_the_process_at_once() -> None:
    with pytest.raises(SystemExit) as end, ended_by_sigterm():
        tell()
    assert end.value.code == 128 + signal.SIGTERM
