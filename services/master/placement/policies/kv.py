"""Dynamo's router: missing blocks to prefill plus blocks already active, softmax over the costs."""

from __future__ import annotations

import random

import numpy as np

from services.master.config import MasterConfig
from services.master.fleet.columns import Floats
from services.master.placement.costs import DECODE, ENCODE, StageCosts, least
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

    def scores(self, costs: StageCosts) -> Floats:
        pool = costs.pool
        if costs.stage == ENCODE:
            return self._turns.scores(costs)
        active = pool.context_tokens / costs.block_size
        if costs.stage == DECODE:
            return active + costs.tokens / costs.block_size
        prefill = (pool.queued_tokens + costs.tokens - costs.hits) / costs.block_size
        return self.config.overlap_weight * prefill + active

    def pick(self, costs: StageCosts) -> int:
        if costs.stage == ENCODE:
            return self._turns.pick(costs)
        scores = self.scores(costs) + costs.penalty
        temperature = self.config.temperature
        if temperature <= 0:
            return self.least(scores, costs)
        return self.draw(np.exp((least(scores) - scores) / temperature))
