"""What a run is given and what comes of it: a fleet's shape, a request's times."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.simulate.prompts import TraceRequest


@dataclass(frozen=True)
class Shape:
    """Workers by role."""

    encode: int
    prefill: int
    decode: int

    def times(self, factor: int) -> Shape:
        return Shape(self.encode * factor, self.prefill * factor, self.decode * factor)


@dataclass(eq=False, slots=True)
class Record:
    """What became of a request. Times are seconds; inf for what has not happened."""

    request: TraceRequest
    arrival: float
    first: float = math.inf
    last: float = math.inf
    cached: int = 0
    refused: str = ""

    @property
    def ttft(self) -> float:
        return self.first - self.arrival

    @property
    def tpot(self) -> float:
        if math.isinf(self.last):
            return math.inf
        return (self.last - self.first) / max(1, self.request.output - 1)
