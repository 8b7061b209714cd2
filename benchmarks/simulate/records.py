"""What a run is given and what comes of it: a fleet's shape, how long it lasts, requests' times."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.simulate.prompts import TraceRequest
from protocol.registry import StageRole


@dataclass(frozen=True, order=True)
class Shape:
    """Workers by role."""

    encode: int
    prefill: int
    decode: int

    @property
    def total(self) -> int:
        return self.encode + self.prefill + self.decode

    def stages(self) -> list[StageRole]:
        """The role of each worker."""
        counts: dict[StageRole, int] = {
            "encode": self.encode, "prefill": self.prefill, "decode": self.decode
        }  # fmt: skip
        return [role for role, count in counts.items() for _ in range(count)]

    def __str__(self) -> str:
        return f"{self.encode}E{self.prefill}P{self.decode}D"


@dataclass(frozen=True)
class Span:
    """How long a run lasts, in virtual seconds.

    `warm_s`: caches and queues fill before anything is counted.
    `least_s`: measured at least; longer until it is `lifetimes` median lifetimes of a request, but
    no longer than `most_s`.
    `hopeless`: end early once this share of the measured requests is too late, 1 for never.
    """

    warm_s: float = 30.0
    least_s: float = 20.0
    lifetimes: float = 10.0
    most_s: float = 240.0
    hopeless: float = 1.0


@dataclass(eq=False, slots=True)
class Record:
    """What became of a request. Times are seconds; inf for what has not happened.

    `aims`: the seconds to the first token and per further token that it must keep.
    `cached`: prompt tokens whose KV was there.
    `refused`: the error's code.
    """

    request: TraceRequest
    arrival: float
    aims: tuple[float, float] = (math.inf, math.inf)
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

    @property
    def over(self) -> bool:
        return bool(self.refused) or not math.isinf(self.last)

    @property
    def good(self) -> bool:
        """It has kept both objectives."""
        return not self.refused and self.ttft <= self.aims[0] and self.tpot <= self.aims[1]

    def lost(self, now: float) -> bool:
        """It cannot keep its objectives any more, finished or not."""
        if self.over:
            return not self.good
        if math.isinf(self.first):
            return now - self.arrival > self.aims[0]
        return self.ttft > self.aims[0] or now - self.first > self.aims[1] * max(
            1, self.request.output - 1
        )
