"""Ours: the worker where the request is predicted to cost the fewest milliseconds."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from services.master.fleet.pool import Floats
from services.master.placement.choice import Choice
from services.master.placement.costs import COMBINED, DECODE, View
from services.master.placement.policies.base import Policy


class CostPolicy(Policy):
    """Time to the first token, plus what its computing costs those who come after: `work_weight`
    per ms, once and for every request that a worker has on average. In a fleet with time to spare
    a hot prefix spreads before it makes a hotspot; in a busy one what is cached is used.
    """

    sees_media: ClassVar[bool] = True
    compares: ClassVar[bool] = True

    def scores(self, view: View) -> Floats:
        if view.stage == DECODE:
            return view.decode_ms
        scores = view.ttft_ms + self._weight(view) * view.work_ms
        return scores + view.decode_ms if view.stage == COMBINED else scores

    def price(self, choice: Choice) -> float:
        view, row = choice.view, choice.row
        if view.stage == DECODE:
            return float(view.decode_ms[row])
        price = choice.ttft_ms + self._weight(view) * float(view.work_ms[row])
        return price + float(view.decode_ms[row]) if view.stage == COMBINED else price

    def _weight(self, view: View) -> float:
        """What a ms of computing costs others: with more requests on every worker, more of them
        stand behind it, and a prefix computed twice is time that nobody gets back. The average is
        harmonic: a few idle workers count for more than a crowded one."""
        pool, weight = view.pool, self.config.work_weight
        if view.penalty is pool.penalty:
            return weight * pool.able / pool.shares
        able = view.penalty == 0.0
        return weight * np.count_nonzero(able) / float(pool.share.dot(able))

    def pick(self, view: View) -> int:
        """A share of a wait means nothing to anyone; a share of a whole answer may hide a queue."""
        whole = view.stage in (DECODE, COMBINED)
        ratio = 0.0 if whole else self.config.tie_ratio
        return self.least(self.scores(view) + view.penalty, view, self.config.tie_ms, ratio)
