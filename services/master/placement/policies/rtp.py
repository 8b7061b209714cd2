"""RTP-LLM's master: least predicted time to the first token, decode where KV is least used."""

from __future__ import annotations

import math

import numpy as np

from services.master.fleet.columns import Floats
from services.master.placement.costs import DECODE, ENCODE, StageCosts, least
from services.master.placement.policies.base import Policy

# Both are RTP-LLM's own.
_SLACK_MS = 20.0
_OVERLOADED = 3.0


class RTPPolicy(Policy):
    """Prefill: a cached token costs `rtp_hit_weight` of a missing one, and the wait is added.
    Workers with more than three times the mean of requests or of wait are left out; any within
    max(`rtp_slack` of the least, 20 ms) is drawn. Decode: weighted by exp(-`rtp_decay` * tokens of
    KV used beyond the least); of a worker that tells no blocks, the context placed there. Encoders
    are drawn at random.

    It reserves for a decode the prompt and at most 1000 tokens: `expected_tokens` 1000.
    """

    def scores(self, costs: StageCosts) -> Floats:
        pool = costs.pool
        if costs.stage == ENCODE:
            return np.zeros(len(pool))
        if costs.stage == DECODE:
            told = pool.total_blocks > 0.0
            used = np.where(told, pool.total_blocks - pool.free_blocks, 0.0) * costs.block_size
            return np.where(told, used, pool.context_tokens)
        missing = costs.tokens - costs.hits
        work = (missing + self.config.rtp_hit_weight * costs.hits) * pool.token_ms
        return pool.base_ms + work + costs.queue_ms

    def pick(self, costs: StageCosts) -> int:
        scores = self.scores(costs) + costs.penalty
        if costs.stage == DECODE:
            # Of a barred row 0: infinity times an --rtp-decay of 0 is no number.
            beyond = np.where(costs.penalty > 0.0, 0.0, scores - least(scores))
            weights = np.exp(-self.config.rtp_decay * beyond) * (costs.penalty == 0.0)
        else:
            if costs.stage != ENCODE:
                scores = scores + _overloaded(costs)
            lowest = least(scores)
            slack = max(self.config.rtp_slack * lowest, _SLACK_MS)
            weights = (scores <= lowest + slack).astype(np.float64)
        return self.draw(weights)


def _overloaded(costs: StageCosts) -> Floats:
    """inf for workers far above the mean; if none is left, for all but that with the least wait.
    Means are cut off to whole requests and ms, and say nothing if that leaves 0. [rows]"""
    able = costs.penalty == 0.0
    above = np.zeros(len(able), np.bool_)
    for column in (costs.pool.requests, costs.queue_ms):
        mean = math.floor(column[able].mean())
        if mean > 0:
            above |= column > _OVERLOADED * mean
    if (above | ~able).all():
        above[int((costs.queue_ms + costs.penalty).argmin())] = False
    return np.where(above, math.inf, 0.0)
