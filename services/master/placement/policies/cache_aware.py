"""SGLang's gateway: the best prefix match while loads are balanced, the least load otherwise."""

from __future__ import annotations

import numpy as np

from services.master.fleet.columns import Floats
from services.master.placement.costs import DECODE, ENCODE, StageCosts, least
from services.master.placement.policies.base import Policy


class CacheAwarePolicy(Policy):
    """Imbalanced if most - fewest requests > `balance_abs` and most > `balance_rel` * fewest: least
    load. Else the best match if it is more than `cache_threshold` of the prompt, otherwise least
    load. Encoders are drawn at random. Where only decoding is done it is the least load: SGLang
    leaves that choice to the operator, and prefixes would pile up decodes on a few workers.
    """

    def scores(self, costs: StageCosts) -> Floats:
        loads = costs.pool.requests
        if costs.stage == ENCODE:
            return np.zeros(len(loads))
        if costs.stage == DECODE:
            return loads
        config, able = self.config, loads[costs.penalty == 0.0]
        most, fewest = float(able.max()), float(able.min())
        imbalanced = most - fewest > config.balance_abs and most > config.balance_rel * fewest
        matched = costs.hits - costs.penalty
        best = float(matched[matched.argmax()]) / costs.tokens
        return loads if imbalanced or best <= config.cache_threshold else -costs.hits

    def pick(self, costs: StageCosts) -> int:
        scores = self.scores(costs) + costs.penalty
        if costs.stage == ENCODE:
            return self.draw((scores == least(scores)).astype(np.float64))
        return self.least(scores, costs)
