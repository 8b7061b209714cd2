"""One worker after the other, over all requests and not anew in each."""

from __future__ import annotations

import random
from weakref import WeakKeyDictionary

import numpy as np

from services.master.config import MasterConfig
from services.master.fleet.pool import Floats, Pool
from services.master.placement.costs import View
from services.master.placement.policies.base import Policy


class RoundRobinPolicy(Policy):
    def __init__(self, config: MasterConfig, rng: random.Random) -> None:
        super().__init__(config, rng)
        self._last: WeakKeyDictionary[Pool, int] = WeakKeyDictionary()

    def scores(self, view: View) -> Floats:
        """Rows after the last one used come first."""
        rows = len(view.pool)
        start = self._last.get(view.pool, -1) + 1
        return np.roll(np.arange(rows, dtype=np.float64), start)

    def pick(self, view: View) -> int:
        row = int((self.scores(view) + view.penalty).argmin())
        self._last[view.pool] = row
        return row
