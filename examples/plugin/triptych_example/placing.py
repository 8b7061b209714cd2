"""Where a request goes, and which request runs first."""

from __future__ import annotations

import numpy as np

from protocol.types import GenerateRequest
from services.master.fleet.columns import Floats
from services.master.placement.costs import StageCosts
from services.master.placement.policies.base import Policy


class NearestRack(Policy):
    """`--policy nearest_rack` of the master: the least queue, and of equal ones the worker whose
    name comes first, as names begin with a rack here."""

    def scores(self, costs: StageCosts) -> Floats:
        """Milliseconds of work before the request, and next to nothing for the name. [rows]"""
        names = list(costs.pool.ids)
        place = {name: number for number, name in enumerate(sorted(names))}
        return costs.queue_ms + np.array([place[name] for name in names]) * 1e-6


def shortest_first(request: GenerateRequest) -> float:
    """`--scheduling-policy shortest_first` of workers: of those that wait, the shortest prompt.
    Long prompts may wait for ever behind it: for fleets that short ones are most urgent in."""
    return len(request.token_ids)
