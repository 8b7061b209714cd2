"""Policies that look at no cache: in turns, at random, by the fewest requests."""

from __future__ import annotations

import random
from weakref import WeakKeyDictionary

import numpy as np

from services.master.config import MasterConfig
from services.master.fleet.columns import Floats
from services.master.fleet.pool import Pool
from services.master.placement.costs import StageCosts
from services.master.placement.policies.base import Policy


class RoundRobinPolicy(Policy):
    def __init__(self, config: MasterConfig, rng: random.Random) -> None:
        super().__init__(config, rng)
        # Weak: the pools of a model that is forgotten go. By pool: models take turns apart.
        self._last: WeakKeyDictionary[Pool, int] = WeakKeyDictionary()

    def scores(self, costs: StageCosts) -> Floats:
        """Rows after the last one used come first."""
        rows = len(costs.pool)
        start = self._last.get(costs.pool, -1) + 1
        return np.roll(np.arange(rows, dtype=np.float64), start)

    def pick(self, costs: StageCosts) -> int:
        row = int((self.scores(costs) + costs.penalty).argmin())
        self._last[costs.pool] = row
        return row


class RandomPolicy(Policy):
    def scores(self, costs: StageCosts) -> Floats:
        return np.zeros(len(costs.pool))

    def pick(self, costs: StageCosts) -> int:
        able = np.flatnonzero(costs.penalty == 0.0)
        return int(able[self.rng.randrange(len(able))])


class LeastLoadedPolicy(Policy):
    def scores(self, costs: StageCosts) -> Floats:
        return costs.pool.requests
