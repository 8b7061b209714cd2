"""Any worker."""

from __future__ import annotations

import numpy as np

from services.master.fleet.columns import Floats
from services.master.placement.costs import StageCosts
from services.master.placement.policies.base import Policy


class RandomPolicy(Policy):
    def scores(self, costs: StageCosts) -> Floats:
        return np.zeros(len(costs.pool))

    def pick(self, costs: StageCosts) -> int:
        able = np.flatnonzero(costs.penalty == 0.0)
        return int(able[self.rng.randrange(len(able))])
