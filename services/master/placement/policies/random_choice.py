"""Any worker."""

from __future__ import annotations

import numpy as np

from services.master.fleet.pool import Floats
from services.master.placement.costs import View
from services.master.placement.policies.base import Policy


class RandomPolicy(Policy):
    def scores(self, view: View) -> Floats:
        return np.zeros(len(view.pool))

    def pick(self, view: View) -> int:
        able = np.flatnonzero(view.penalty == 0.0)
        return int(able[self.rng.randrange(len(able))])
