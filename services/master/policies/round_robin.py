"""One worker after the other, over all requests and not anew in each."""

from __future__ import annotations

import random

import numpy as np

from services.master.config import MasterConfig
from services.master.policies.base import Policy
from services.master.pool import Floats
from services.master.view import View


class RoundRobinPolicy(Policy):
    def __init__(self, config: MasterConfig, rng: random.Random) -> None:
        super().__init__(config, rng)
        self._last: dict[str, int] = {}

    def scores(self, view: View) -> Floats:
        """Rows after the last one used come first."""
        rows = len(view.pool)
        start = self._last.get(view.pool.kind, -1) + 1
        return np.roll(np.arange(rows, dtype=np.float64), start)

    def pick(self, view: View) -> int:
        row = int((self.scores(view) + view.penalty).argmin())
        self._last[view.pool.kind] = row
        return row
