"""What a request must keep to count: time to its first token, time per token after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import TraceRequest

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
