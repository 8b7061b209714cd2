"""Notices an engine that makes no progress: its process is stopped, or a step never ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from protocol.registry import Progress

_TICK_S = 0.25
_LONGER = 2.0  # how many times the longest step so far a step may take
_LEAST_STEP_S = 10.0  # machines that are short of CPU time or memory hold a step up for seconds
_NEW_LONGER = 4.0  # the same for a step that does more than any before, or something else:
_LEAST_NEW_STEP_S = 120.0  # kernels are compiled; the proxy waits no longer for a prefill either


@dataclass(frozen=True)
class StallBounds:
    """`silent_s` without a beat, or a step of `step_s`, is a stall. `step_s` 0: 10 s, or twice the
    longest step that has ended, if that is more; for a step that does what none has done before
    120 s or four times."""

    silent_s: float
    step_s: float = 0.0

    def longest_step_s(self, progress: Progress) -> float:
        """What the step under way may take."""
        seen_s = progress.longest_step_s
        if self.step_s:
            return self.step_s
        if progress.new:
            return max(_LEAST_NEW_STEP_S, _NEW_LONGER * seen_s)
        return max(_LEAST_STEP_S, _LONGER * seen_s)


class StallJudge:
    """What an engine's beats say of it. It is judged from its first beat on."""

    def __init__(self, bounds: StallBounds) -> None:
        self.progress = Progress()
        self.stall = ""  # why it is taken for stalled, "" if it is not
        self._bounds = bounds
        # None before the first beat: an engine sends none while it loads its model.
        self._silent_s: float | None = None

    def heard(self, progress: Progress) -> bool:
        """A beat; whether the verdict has changed."""
        self.progress, self._silent_s = progress, 0.0
        return self._judge()

    def waited(self, seconds: float) -> bool:
        """So long nothing came; whether the verdict has changed. Seconds in which the caller was
        stopped itself must not be among them."""
        if self._silent_s is not None:
            self._silent_s += seconds
        return self._judge()

    def _judge(self) -> bool:
        before, self.stall = self.stall, self._reason()
        return bool(before) != bool(self.stall)

    def _reason(self) -> str:
        bounds, silent_s = self._bounds, self._silent_s or 0.0
        step_s = self.progress.step_s
        if silent_s >= bounds.silent_s:
            return f"engine stalled since {silent_s:.1f} s: its process does not run"
        if step_s >= bounds.longest_step_s(self.progress):
            return f"engine stalled since {step_s:.0f} s: a step does not end"
        return ""


class StallWatch(StallJudge):
    """Hears beats at `endpoint`. `changed` is called when the engine stalls, and when it goes on.

    A tick counts for two at the most, however late it comes: what this process has slept itself is
    no silence of the engine, whose beats it finds when it wakes.
    """

    def __init__(self, endpoint: str, bounds: StallBounds, changed: Callable[[], None]) -> None:
        super().__init__(bounds)
        self._changed = changed
        context: zmq.asyncio.Context = zmq.asyncio.Context.instance()
        self._beats: Any = context.socket(zmq.PULL)
        self._beats.bind(endpoint)

    async def run(self) -> None:
        """Until cancelled."""
        decoder = msgspec.msgpack.Decoder(Progress)
        while True:
            before = time.monotonic()
            if await self._beats.poll(round(_TICK_S * 1000)):
                changed = self.heard(decoder.decode(await self._beats.recv()))
            else:
                changed = self.waited(min(time.monotonic() - before, 2 * _TICK_S))
            if changed:
                self._changed()

    def close(self) -> None:
        self._beats.close(linger=0)
