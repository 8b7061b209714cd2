"""The worker with the fewest requests, placed or reported."""

from __future__ import annotations

from services.master.fleet.columns import Floats
from services.master.placement.costs import StageCosts
from services.master.placement.policies.base import Policy


class LeastLoadedPolicy(Policy):
    def scores(self, costs: StageCosts) -> Floats:
        return costs.pool.requests
