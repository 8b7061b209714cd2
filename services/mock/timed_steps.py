"""The steps of an engine's cores on a clock that is not theirs: work begins, and ends later."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.types import EncodeOutput, RequestOutput
from services.engine.scheduling.encode_queue import EncodeQueue
from services.engine.scheduling.generate_core import GenerateCore
from services.engine.scheduling.seams import Prepared
from services.mock.batches import Batch
from services.mock.runner import TimedRunner, TimedVision
from services.mock.timing import Noise, Timing

_CATCH_UP_S = 0.05
Worked = list[tuple[float, float]]
"""From when to when something was computed."""


@dataclass(frozen=True)
class _Run:
    """Pictures under way."""

    start: float
    end: float
    batch: list[Prepared]


class TimedEncoding:
    """Encodes one run of pictures after the other."""

    def __init__(
        self, queue: EncodeQueue, vision: TimedVision, timing: Timing, noise: Noise
    ) -> None:
        self._queue = queue
        self._vision = vision
        self._timing = timing
        self._noise = noise
        self._run: _Run | None = None

    def step(self, now: float, worked: Worked, *, held: bool = False) -> list[EncodeOutput]:
        """What is due by now; `worked` gets the time of a run that has ended. `held`: no run may
        begin."""
        outputs = self._queue.advance()
        run = self._run
        if run is not None and run.end <= now:
            self._run = None
            worked.append((run.start, run.end))
            outputs += self._queue.complete(run.batch, self._vision.encode(run.batch))
        if self._run is None and not held:
            batch, failed = self._queue.begin()
            outputs += failed
            if batch:
                self._run = _Run(now, now + self._seconds(batch), batch)
        return outputs

    def busy(self, now: float) -> bool:
        """Whether a run goes on after this."""
        return self._run is not None and self._run.end > now

    @property
    def waits(self) -> bool:
        """Whether a run could begin."""
        return self._run is None and self._queue.runnable

    def _seconds(self, batch: list[Prepared]) -> float:
        patches = sum(prepared.patches for prepared in batch)
        tokens = sum(prepared.item.length for prepared in batch)
        return self._noise.on(self._timing.encode_s(patches, tokens))

    @property
    def times(self) -> list[float | None]:
        """When there may be something to do."""
        return [self._run.end if self._run is not None else None, self._queue.next_deadline]


class TimedGeneration:
    """Computes one batch of tokens after the other."""

    def __init__(
        self, core: GenerateCore, runner: TimedRunner, timing: Timing, noise: Noise
    ) -> None:
        self._core = core
        self._runner = runner
        self._timing = timing
        self._noise = noise
        self._batch: Batch | None = None

    def step(
        self, now: float, worked: Worked, *, held: bool = False, wanted: bool = False
    ) -> list[RequestOutput]:
        """What is due by now; `worked` gets the time of a batch that has ended. `held`: none may
        begin; `wanted`: pictures wait for the one under way."""
        core = self._core
        outputs: list[RequestOutput] = []
        start = now
        batch = self._batch
        if batch is not None and batch.end <= now:
            # The next batch begins when this one ended, unless the process has been held up.
            start = max(batch.end, now - _CATCH_UP_S)
            self._batch = None
            worked.append((batch.start, batch.end))
            outputs += core.complete(batch.chunks, self._runner.run(batch.chunks))
        outputs += core.advance()
        if self._batch is not None:
            self._make_way(self._batch, now, wanted=wanted)
        if self._batch is not None or held:
            return outputs
        chunks = core.begin()
        if not chunks and len(core):
            # What one look has found lacking, the next one asks for or takes from others.
            outputs += core.advance()
            chunks = core.begin()
        if chunks:
            self._batch = Batch.of(chunks, start, self._timing, self._noise)
        return outputs

    def busy(self, now: float) -> bool:
        """Whether a batch goes on after this."""
        return self._batch is not None and self._batch.end > now

    def _make_way(self, batch: Batch, now: float, *, wanted: bool) -> None:
        """Requests that have come take part from the next step on."""
        scheduler = self._core.scheduler
        come = scheduler.waiting or len(scheduler.running) > len(batch.chunks)
        if batch.steps > 1 and (come or wanted):
            batch.cut(now)

    @property
    def times(self) -> list[float | None]:
        """When there may be something to do."""
        return [self._batch.end if self._batch is not None else None, self._core.next_deadline]
