"""The worker with the fewest requests, placed or reported."""

from __future__ import annotations

from services.master.policies.base import Policy
from services.master.pool import Floats
from services.master.view import View


class LeastLoadedPolicy(Policy):
    def scores(self, view: View) -> Floats:
        return view.pool.requests
