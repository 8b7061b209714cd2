"""What a run is given and what comes of it: a fleet's shape, how long it lasts, what a request must
keep to count, requests' times."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.simulate.profile import Profile
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

    def neighbours(self) -> list[Shape]:
        """Those in which one worker serves another stage. No stage is left without a worker, and
        none gets its first."""
        counts = vars(self)
        found = []
        for one, other in itertools.permutations(counts, 2):
            if counts[one] > 1 and counts[other]:
                moved = {one: counts[one] - 1, other: counts[other] + 1}
                found.append(replace(self, **moved))
        return found

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
    """What became of a request. Times are seconds; inf for what has not happened."""

    request: TraceRequest  # what was asked
    arrival: float  # when it came
    # The seconds to the first token and per further token that it must keep
    aims: tuple[float, float] = (math.inf, math.inf)
    first: float = math.inf  # when its first token was there
    last: float = math.inf  # when its last was
    cached: int = 0  # prompt tokens whose KV was there
    refused: str = ""  # the error's code

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


TTFT_TIMES = 5.0


TPOT_TIMES = 5.0


@dataclass(frozen=True)
class Objectives:
    """The same seconds for all requests if given, else for each `TTFT_TIMES` and `TPOT_TIMES` what
    it takes on an idle fleet with empty caches, and for the first token no less than that of a mean
    request, which takes `mean_ttft_s`."""

    profile: Profile
    mean_ttft_s: float = 0.0
    ttft_s: float = 0.0
    tpot_s: float = 0.0

    @staticmethod
    def relative(profile: Profile, sample: Sequence[TraceRequest]) -> Objectives:
        """To an idle fleet. `sample` tells how long a mean request takes there."""
        alone = [profile.unloaded_ttft(r.tokens, [i.tokens for i in r.items]) for r in sample]
        return Objectives(profile, float(np.mean(alone)))

    def of(self, request: TraceRequest) -> tuple[float, float]:
        """(time to the first token, time per further token) in seconds."""
        ttft, tpot = self.ttft_s, self.tpot_s
        if not ttft:
            pictures = [item.tokens for item in request.items]
            alone = self.profile.unloaded_ttft(request.tokens, pictures)
            ttft = TTFT_TIMES * max(alone, self.mean_ttft_s)
        if not tpot:
            tpot = TPOT_TIMES * self.profile.unloaded_tpot(request.tokens, request.output)
        return ttft, tpot


def median_lifetime(records: Iterable[Record], now: float) -> float:
    """Seconds from arrival to the last token, as far as requests have lived."""
    lived = [(r.last if r.over and not r.refused else now) - r.arrival
             for r in records if not r.refused]  # fmt: skip
    return statistics.median(lived) if lived else 0.0
