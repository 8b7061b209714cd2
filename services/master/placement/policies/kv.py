"""Dynamo's KV router: missing blocks to prefill, blocks that decode, softmax over the costs.

After `lib/kv-router` (`scheduling/selector.rs`, `conditional_disagg.rs`) and the documents on
disaggregated serving of Dynamo 1.4 to 1.6.
"""

from __future__ import annotations

import random
from typing import ClassVar

import numpy as np

from services.master.config import MasterConfig
from services.master.fleet.columns import Floats
from services.master.placement.costs import DECODE, ENCODE, PREFILL, Choice, StageCosts, least
from services.master.placement.policies.base import Policy
from services.master.placement.policies.simple import RoundRobinPolicy


class KVPolicy(Policy):
    """cost = overlap_weight * prefill blocks + active decode blocks.

    Prefill blocks are those still to be computed there and the request's own, less `overlap_credit`
    for each that is cached. Where only prompts are computed, active blocks do not count. Where only
    decoding is done, the overlap does not, unless decode workers may compute short rests
    (`kv_local_tokens`): then the cached blocks are taken off the active ones. Encoders take turns,
    or by `kv_encoders` it is the one with the fewest requests of those that hold the picture.
    """

    keeps_media: ClassVar[bool] = True  # its prefill workers have a cache of embeddings

    def __init__(self, config: MasterConfig, rng: random.Random) -> None:
        super().__init__(config, rng)
        self._turns = RoundRobinPolicy(config, rng)
        self.seeks_holders = config.kv_encoders == "cached"

    def scores(self, costs: StageCosts) -> Floats:
        pool, config = costs.pool, self.config
        if costs.stage == ENCODE:
            if not self.seeks_holders:
                return self._turns.scores(costs)
            return pool.requests / (1.0 + float(pool.requests.max())) - costs.hits
        credit = config.overlap_credit * costs.hits / costs.block_size
        active = (pool.context_tokens + costs.tokens) / costs.block_size
        if costs.stage == DECODE:
            return np.maximum(active - credit, 0.0) if config.kv_local_tokens else active
        prefill = (pool.queued_tokens + costs.tokens) / costs.block_size - credit
        cost = config.overlap_weight * np.maximum(prefill, 0.0)
        return cost if costs.stage == PREFILL else cost + active

    def pick(self, costs: StageCosts) -> int:
        if costs.stage == ENCODE and not self.seeks_holders:
            return self._turns.pick(costs)
        scores = self.scores(costs) + costs.penalty
        if self.config.temperature <= 0 or costs.stage == ENCODE:
            return self.least(scores, costs)
        # Scaled to their range, as in Dynamo's router: a temperature means the same under any load.
        lowest, able = least(scores), scores[np.isfinite(scores)]
        scale = (float(able.max()) - lowest) * self.config.temperature
        return self.draw(np.exp((lowest - scores) / (scale or 1.0)))

    def computes_there(self, decode: Choice) -> bool:
        missing, tokens = decode.costs.tokens - decode.hits, decode.costs.tokens
        config = self.config
        return missing < config.kv_local_tokens and missing < config.kv_local_ratio * tokens
