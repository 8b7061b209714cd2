"""Tells the worker how an engine's steps come on, from a thread that beats while a step runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from protocol.registry import Progress
from services.engine.scheduling.chunks import StepSizes

BEAT_S = 0.25
"""Seconds between two beats."""


class StepClock:
    """When steps began and ended, and whether the one under way does more than any before
    (`sizes`). The engine's thread writes, another one reads."""

    def __init__(
        self, sizes: StepSizes | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sizes = sizes or StepSizes()
        self._clock = clock
        self._steps = 0
        self._longest = 0.0
        self._began: float | None = None
        self._ended = clock()

    def begin(self) -> None:
        self._sizes.begin()
        self._began = self._clock()

    def end(self) -> None:
        began, now = self._began, self._clock()
        if began is not None:
            self._longest = max(self._longest, now - began)
        self._steps += 1
        self._ended = now
        # After `_ended`: else a reader would take the time since the step before for idle.
        self._began = None
        self._sizes.end()

    def progress(self) -> Progress:
        # The clock last: a whole step may pass between two readings, and no time is negative.
        began, ended = self._began, self._ended
        now = self._clock()
        return Progress(
            steps=self._steps,
            step_s=0.0 if began is None else now - began,
            idle_s=now - ended if began is None else 0.0,
            longest_step_s=self._longest,
            new=began is not None and self._sizes.new,
        )


class Pulse:
    """Sends the progress of `steps` to `endpoint` until closed.

    PyTorch lets other threads run while it computes, so beats that stop mean a process that is
    stopped, and a step without an end one that hangs. Beats that the worker does not take are
    dropped.
    """

    def __init__(self, endpoint: str, steps: StepClock) -> None:
        self._endpoint = endpoint
        self._steps = steps
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        socket: zmq.Socket[Any] = zmq.Context.instance().socket(zmq.PUSH)
        with contextlib.closing(socket):
            socket.linger = 0
            socket.sndhwm = 1
            socket.connect(self._endpoint)
            while not self._closed.is_set():
                with contextlib.suppress(zmq.Again):
                    socket.send(msgspec.msgpack.encode(self._steps.progress()), zmq.NOBLOCK)
                self._closed.wait(BEAT_S)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
