"""SGLang's gateways: the best prefix match while loads are balanced, the least load otherwise."""

from __future__ import annotations

import numpy as np

from services.master.fleet.columns import Floats
from services.master.placement.costs import DECODE, ENCODE, StageCosts
from services.master.placement.policies.base import Policy


class CacheAwarePolicy(Policy):
    """Imbalanced if most - fewest requests > `balance_abs` and most > `balance_rel` * fewest: least
    load. Else the best match if it is more than `cache_threshold` of the prompt, otherwise least
    load. A picture always goes to the same encoder, by its content. Where only decoding is done it
    is the least load: SGLang leaves that choice to the operator, and prefixes would pile up decodes
    on a few workers. It counts requests until their prompt is computed, where SGLang's gateway
    counts them until their answer has ended.
    """

    def scores(self, costs: StageCosts) -> Floats:
        loads = costs.pool.requests
        if costs.stage == ENCODE:
            return np.zeros(len(loads))
        return loads if costs.stage == DECODE else self._prompt(costs, loads)

    def _prompt(self, costs: StageCosts, loads: Floats) -> Floats:
        """Scores for the stages that compute a prompt. [rows]"""
        config, able = self.config, loads[costs.penalty == 0.0]
        most, fewest = float(able.max()), float(able.min())
        imbalanced = most - fewest > config.balance_abs and most > config.balance_rel * fewest
        matched = costs.hits - costs.penalty
        best = float(matched[matched.argmax()]) / costs.tokens
        return loads if imbalanced or best <= config.cache_threshold else -costs.hits

    def pick(self, costs: StageCosts) -> int:
        if costs.stage == ENCODE:
            return self.steady(costs)
        return self.least(self.scores(costs) + costs.penalty, costs)


class SMGPolicy(CacheAwarePolicy):
    """SMG, which SGLang's gateway has become: the best match however short, of equal ones the least
    load. If that worker has more than `balance_rel` times the mean of requests, and `balance_abs`
    more than the mean, or none has a match: the least load.
    """

    def _prompt(self, costs: StageCosts, loads: Floats) -> Floats:
        able = costs.penalty == 0.0
        best, mean = float(costs.hits[able].max()), float(loads[able].mean())
        load = float(loads[able & (costs.hits == best)].min())
        config = self.config
        crowded = load > config.balance_rel * mean and load > mean + config.balance_abs
        if crowded or best <= 0.0:
            return loads
        return loads / (1.0 + float(loads.max())) - costs.hits  # a token counts for more than loads
