"""Dynamo's router: missing blocks to prefill plus blocks already active, softmax over the costs."""

from __future__ import annotations

import math

import numpy as np

from services.master.policies.base import Policy
from services.master.pool import Floats
from services.master.view import DECODE, ENCODE, View


class KVPolicy(Policy):
    """cost = overlap_weight * prefill blocks + active decode blocks.

    Prefill blocks are those still waiting there and the request's own without the overlap. Where
    only decoding is done the overlap does not count. It has no rule for encoders: least loaded.
    """

    def scores(self, view: View) -> Floats:
        pool = view.pool
        if view.stage == ENCODE:
            return pool.requests
        active = pool.context_tokens / view.block_size
        if view.stage == DECODE:
            return active + view.tokens / view.block_size
        prefill = (pool.queued_tokens + view.tokens - view.hits) / view.block_size
        return self.config.overlap_weight * prefill + active

    def pick(self, view: View) -> int:
        scores = self.scores(view) + view.penalty
        temperature = self.config.temperature
        if temperature <= 0:
            return self.least(scores, view)
        weights = np.exp((scores.min() - scores) / temperature)
        total = np.cumsum(weights)
        drawn = self.rng.random() * float(total[-1])
        row = int(np.searchsorted(total, drawn, side="right"))
        return row if row < len(scores) and math.isfinite(scores[row]) else int(scores.argmin())
