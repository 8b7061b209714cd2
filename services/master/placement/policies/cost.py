"""Ours: the worker where the request is predicted to cost the fewest milliseconds."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from services.master.fleet.columns import Floats
from services.master.placement.costs import COMBINED, DECODE, Choice, StageCosts
from services.master.placement.policies.base import Policy


class CostPolicy(Policy):
    """Time to the first token, plus what its computing costs those who come after: `work_weight`
    per ms, once and for every request that a worker has on average, and more on a worker that had
    more than its share to compute lately. In a fleet with time to spare a hot prefix spreads before
    it makes a hotspot; in a busy one what is cached is used.
    """

    sees_media: ClassVar[bool] = True
    compares: ClassVar[bool] = True

    def scores(self, costs: StageCosts) -> Floats:
        if costs.stage == DECODE:
            return costs.decode_ms
        # Without it those with long histories stay on workers that are busy, whose caches then
        # forget the soonest, while others are idle: the more so, the larger the fleet.
        scores = costs.pool.recent.relative(costs.pool.able, self._weight(costs))
        scores *= costs.work_ms
        scores += costs.ttft_ms
        return scores + costs.decode_ms if costs.stage == COMBINED else scores

    def price(self, choice: Choice) -> float:
        costs, row = choice.costs, choice.row
        if costs.stage == DECODE:
            return float(costs.decode_ms[row])
        busy = costs.pool.recent.relative_of(row, costs.pool.able)
        price = choice.ttft_ms + self._weight(costs) * busy * float(costs.work_ms[row])
        return price + float(costs.decode_ms[row]) if costs.stage == COMBINED else price

    def _weight(self, costs: StageCosts) -> float:
        """What a ms of computing costs others: with more requests on every worker, more of them
        stand behind it, and a prefix computed twice is time lost for all of them. The average is
        harmonic: a few idle workers count for more than a crowded one."""
        pool, weight = costs.pool, self.config.work_weight
        # Nothing is barred: the pool keeps both sums, so that no array is looked at.
        if costs.penalty is pool.penalty:
            return weight * pool.able / pool.shares
        able = costs.penalty == 0.0
        return weight * np.count_nonzero(able) / float(pool.share.dot(able))

    def pick(self, costs: StageCosts) -> int:
        """A share of a wait means nothing to anyone; a share of a whole answer may hide a queue."""
        whole = costs.stage in (DECODE, COMBINED)
        ratio = 0.0 if whole else self.config.tie_ratio
        return self.least(self.scores(costs) + costs.penalty, costs, self.config.tie_ms, ratio)
