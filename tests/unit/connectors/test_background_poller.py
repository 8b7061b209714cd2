"""Somebody else polls while an engine computes, and only then."""

import threading
import time
from collections.abc import Iterator

import pytest

from connectors.transports.background_poller import BackgroundPoller as Poller
from tests.support.waiting import until


class Polled:
    """Counts polls; `error` is raised by the next. `wake` ends a rest, as something to do does."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None
        self.wake = threading.Event()
        self.inside = threading.Event()
        self.slow_s = 0.0

    def poll(self) -> None:
        self.inside.set()
        time.sleep(self.slow_s)
        self.count += 1
        self.inside.clear()
        if self.error is not None:
            raise self.error

    def rest(self) -> None:
        self.wake.wait(0.005)
        self.wake.clear()


@pytest.fixture
def polled() -> Polled:
    return Polled()


@pytest.fixture
def poller(polled: Polled) -> Iterator[Poller]:
    made = Poller(polled.poll, polled.rest)
    yield made
    made.close()
    assert "transport" not in {thread.name for thread in threading.enumerate()}


def test_it_polls_while_it_runs_and_not_in_between(poller: Poller, polled: Polled) -> None:
    for _ in range(3):
        before = polled.count
        with poller.running():
            until(lambda before=before: polled.count > before + 3)
        left = polled.count
        polled.wake.set()
        time.sleep(0.02)
        assert polled.count == left


def test_leaving_waits_for_a_poll_under_way(poller: Poller, polled: Polled) -> None:
    polled.slow_s = 0.1
    with poller.running():
        assert polled.inside.wait(10)
    assert not polled.inside.is_set()


def test_what_a_poll_raised_is_raised_on_leaving_once(poller: Poller, polled: Polled) -> None:
    polled.error = ValueError("broken")
    with pytest.raises(ValueError, match="broken"), poller.running():
        until(lambda: polled.count > 0 and not poller._entered.is_set())
    assert polled.count == 1, "it does not go on with what is broken"
    polled.error = None
    with poller.running():
        until(lambda: polled.count > 1)


@pytest.mark.parametrize("closing", [False, True])
def test_what_resting_raises_ends_nothing(polled: Polled, closing: bool) -> None:
    def restless() -> None:
        raise OSError("no rest")

    poller = Poller(polled.poll, restless)
    for turn in range(1 if closing else 3):
        with pytest.raises(OSError, match="no rest"), poller.running():
            until(lambda turn=turn: polled.count > turn and not poller._entered.is_set())
    poller.close()


def test_the_error_of_the_computing_comes_first(poller: Poller, polled: Polled) -> None:
    polled.error = ValueError("broken")
    with pytest.raises(KeyError), poller.running():
        until(lambda: polled.count > 0 and not poller._entered.is_set())
        raise KeyError("computing")


def test_one_that_was_closed_does_nothing(polled: Polled) -> None:
    poller = Poller(polled.poll, polled.rest)
    poller.close()
    poller.close()
    assert polled.count == 0
