"""A worker chosen for a stage of a request."""

from __future__ import annotations

from dataclasses import dataclass

from services.master.fleet.fleet import Fleet
from services.master.fleet.instance import Instance
from services.master.placement.costs import View


@dataclass(slots=True)
class Choice:
    """A row for the stage of a view: the worker, what it holds of the prompt, ms until the stage
    is over."""

    view: View
    row: int
    at: Instance
    hits: int
    ttft_ms: float


def chosen(view: View, row: int, fleet: Fleet) -> Choice:
    """The row of a view that a policy has picked."""
    at = fleet.by_slot[int(view.pool.slots[row])]
    ttft = float(view.queue_ms[row]) + float(view.work_ms[row])
    if view.tail_tokens:
        tail = view.tail_tokens * float(view.pool.token_ms[row])
        ttft = max(ttft, float(view.ready_ms[row]) + tail)
    return Choice(view, row, at, int(view.hits[row]), ttft)


Option = tuple[Choice, Choice | None]
"""Workers for prefill and decode, or one for both."""
