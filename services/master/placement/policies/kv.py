"""Dynamo's router: missing blocks to prefill plus blocks already active, softmax over the costs."""

from __future__ import annotations

import random

import numpy as np

from services.master.config import MasterConfig
from services.master.fleet.pool import Floats
from services.master.placement.costs import DECODE, ENCODE, View, least
from services.master.placement.policies.base import Policy
from services.master.placement.policies.round_robin import RoundRobinPolicy


class KVPolicy(Policy):
    """cost = overlap_weight * prefill blocks + active decode blocks.

    Prefill blocks are those still waiting there and the request's own without the overlap. Where
    only decoding is done the overlap does not count. Encoders take turns.
    """

    def __init__(self, config: MasterConfig, rng: random.Random) -> None:
        super().__init__(config, rng)
        self._turns = RoundRobinPolicy(config, rng)

    def scores(self, view: View) -> Floats:
        pool = view.pool
        if view.stage == ENCODE:
            return self._turns.scores(view)
        active = pool.context_tokens / view.block_size
        if view.stage == DECODE:
            return active + view.tokens / view.block_size
        prefill = (pool.queued_tokens + view.tokens - view.hits) / view.block_size
        return self.config.overlap_weight * prefill + active

    def pick(self, view: View) -> int:
        if view.stage == ENCODE:
            return self._turns.pick(view)
        scores = self.scores(view) + view.penalty
        temperature = self.config.temperature
        if temperature <= 0:
            return self.least(scores, view)
        return self.draw(np.exp((least(scores) - scores) / temperature))
