"""Ours: the worker where the request is predicted to cost the fewest milliseconds."""

from __future__ import annotations

from typing import ClassVar

from services.master.policies.base import Policy
from services.master.pool import Floats
from services.master.view import COMBINED, DECODE, View, least


class CostPolicy(Policy):
    """Time to the first token, plus `work_weight` for every ms of computing that others will wait
    for: a long queue before a cached prefix loses to an idle worker once the wait exceeds what the
    cache saves, so a hot prefix spreads before it makes a hotspot.
    """

    sees_media: ClassVar[bool] = True

    def scores(self, view: View) -> Floats:
        if view.stage == DECODE:
            return view.decode_ms
        scores = view.ttft_ms + self.config.work_weight * view.work_ms
        return scores + view.decode_ms if view.stage == COMBINED else scores

    def pick(self, view: View) -> int:
        scores = self.scores(view) + view.penalty
        return self.least(scores, view, self._slack(scores, view))

    def _slack(self, scores: Floats, view: View) -> float:
        """A share of a wait means nothing to anyone; a share of a whole answer may hide a queue."""
        if view.stage in (DECODE, COMBINED):
            return self.config.tie_ms
        return max(self.config.tie_ms, self.config.tie_ratio * least(scores))
