"""RTP-LLM's master: least predicted time to the first token, decode where KV is least used."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from services.master.fleet.columns import Floats
from services.master.placement.costs import DECODE, ENCODE, StageCosts, least
from services.master.placement.policies.base import Policy

Bools = NDArray[np.bool_]
# Both are RTP-LLM's own.
_SLACK_MS = 20.0
_OVERLOADED = 3.0


class RTPPolicy(Policy):
    """Prefill: a cached token costs `rtp_hit_weight` of a missing one, and the wait is added.
    Workers with more than three times the mean of requests or of wait are left out; any within
    max(`rtp_slack` of the least, 20 ms) is drawn. Decode: weighted by exp(-`rtp_decay` * tokens of
    KV used beyond the least); of a worker that tells no blocks, the context placed there. Those
    with more than three times the mean of requests or of KV, or without KV for the prompt, are left
    out. Encoders are drawn at random.

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
        if costs.stage == ENCODE:
            return self.draw((costs.penalty == 0.0).astype(np.float64))
        scores = self.scores(costs)
        if costs.stage == DECODE:
            penalty = costs.penalty + _overloaded(costs, scores, _without_room(costs))
            # Of a barred row 0: infinity times an --rtp-decay of 0 is no number.
            beyond = np.where(penalty > 0.0, 0.0, scores - least(scores + penalty))
            return self.draw(np.exp(-self.config.rtp_decay * beyond) * (penalty == 0.0))
        scores = scores + costs.penalty + _overloaded(costs, costs.queue_ms)
        lowest = least(scores)
        slack = max(self.config.rtp_slack * lowest, _SLACK_MS)
        return self.draw((scores <= lowest + slack).astype(np.float64))


def _without_room(costs: StageCosts) -> Bools:
    """Workers whose KV has no room for the prompt. [rows]"""
    pool = costs.pool
    return (pool.total_blocks > 0.0) & (pool.free_blocks * costs.block_size < costs.tokens)


def _overloaded(costs: StageCosts, load: Floats, full: Bools | None = None) -> Floats:
    """inf for those `full`, and those far above the mean of requests or of `load`; if none is left,
    for all but the one with the least load. Means are cut off to whole numbers, and say nothing if
    that leaves 0. [rows]"""
    able = costs.penalty == 0.0
    out = np.zeros(len(able), np.bool_) if full is None else full
    for column in (costs.pool.requests, load):
        mean = math.floor(column[able].mean())
        if mean > 0:
            out = out | (column > _OVERLOADED * mean)
    if (out | ~able).all():
        out[int((load + costs.penalty).argmin())] = False
    return np.where(out, math.inf, 0.0)
