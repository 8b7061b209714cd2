"""Copies in threads: what is told of the time they take."""

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest

from connectors.tiers import copier
from connectors.tiers.base import Copied, TierCopy

WAIT_S = 10.0


def ended(copy: TierCopy) -> Copied:
    for _ in range(10_000):
        if (done := copy.poll()) is not None:
            return done
        threading.Event().wait(0.001)
    raise AssertionError("a copy has not ended")


def test_a_copy_is_measured_without_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now, go_on = [0.0], threading.Event()
    monkeypatch.setattr(copier, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def taking(seconds: float, numbers: range) -> list[bool]:
        assert go_on.wait(WAIT_S)
        now[0] += seconds
        return [True] * len(numbers)

    copies: list[Callable[[range], list[bool]]] = [partial(taking, 5.0), partial(taking, 2.0)]
    with contextlib.closing(copier.Copier("test")) as threads:
        first, second = (threads.start(3, copy) for copy in copies)
        go_on.set()
        assert ended(first).seconds == 5.0
        assert ended(second) == Copied([True] * 3, 2.0)
