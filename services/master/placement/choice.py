"""A worker chosen for a stage of a request."""

from __future__ import annotations

from dataclasses import dataclass

from services.master.fleet.fleet import Fleet
from services.master.fleet.instance import Instance
from services.master.placement.costs import StageCosts


@dataclass(slots=True)
class Choice:
    """The worker `at` a `row` of a stage's costs: `hits`, tokens of the prompt that it holds, and
    ms until the stage is over there."""

    costs: StageCosts
    row: int
    at: Instance
    hits: int
    ttft_ms: float


def chosen(costs: StageCosts, row: int, fleet: Fleet) -> Choice:
    """A row that a policy has picked."""
    at = fleet.by_slot[int(costs.pool.slots[row])]
    ttft = float(costs.queue_ms[row]) + float(costs.work_ms[row])
    if costs.tail_tokens:
        tail = costs.tail_tokens * float(costs.pool.token_ms[row])
        ttft = max(ttft, float(costs.ready_ms[row]) + tail)
    return Choice(costs, row, at, int(costs.hits[row]), ttft)


Option = tuple[Choice, Choice | None]
"""Workers for prefill and decode, or one for both."""
