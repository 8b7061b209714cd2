"""Any worker."""

from __future__ import annotations

import numpy as np

from services.master.policies.base import Policy
from services.master.pool import Floats
from services.master.view import View


class RandomPolicy(Policy):
    def scores(self, view: View) -> Floats:
        return np.zeros(len(view.pool))

    def pick(self, view: View) -> int:
        able = np.flatnonzero(view.penalty == 0.0)
        return int(able[self.rng.randrange(len(able))])
