"""How long steps take, one by one or several with the same requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from services.engine.scheduling.chunks import Chunk, work_of
from services.mock.timing import Noise, Timing

PATCHES_PER_TOKEN = 4


@dataclass(frozen=True)
class Pace:
    """Step k of a batch, from 0, takes `first_s` + k · `more_s`."""

    first_s: float
    more_s: float

    def seconds(self, steps: int) -> float:
        return self.first_s * steps + self.more_s * steps * (steps - 1) / 2

    def reached(self, seconds: float) -> int:
        """The fewest steps, at least one, that take so long."""
        half = self.more_s / 2
        steps = seconds / self.first_s if self.first_s else 0.0
        if half:
            line = self.first_s - half
            steps = (math.sqrt(line * line + 4 * half * seconds) - line) / (2 * half)
        # The root is rounded: the loop counts on to the first that takes so long.
        count = max(1, math.floor(steps))
        while self.seconds(count) < seconds - 1e-12:
            count += 1
        return count


@dataclass
class Batch:
    """Chunks under way, each for `steps` steps."""

    chunks: list[Chunk]
    start: float
    pace: Pace
    steps: int

    @staticmethod
    def of(chunks: list[Chunk], start: float, timing: Timing, noise: Noise) -> Batch:
        """Chunks that begin to run at `start`."""
        work, factor, steps = work_of(chunks), noise.on(1.0), chunks[0].steps
        first = timing.prefill_s(work.computed, work.reused)
        first += timing.decode_s(work.requests, work.context)
        more = 0.0
        # All of them decode then, and each step has one token of context more for each.
        if steps > 1:
            more = timing.decode_s(work.requests, work.context + work.requests) - first
        return Batch(chunks, start, Pace(first * factor, more * factor), steps)

    @property
    def end(self) -> float:
        return self.start + self.pace.seconds(self.steps)

    def cut(self, now: float) -> None:
        """End with the step that is under way."""
        self.steps = min(self.steps, self.pace.reached(now - self.start))
        self.chunks = [structs.replace(chunk, steps=self.steps) for chunk in self.chunks]


def patches_of(grid: Sequence[int], tokens: int) -> int:
    """Of a media item that becomes `tokens` embeddings."""
    return math.prod(grid) if grid else tokens * PATCHES_PER_TOKEN
