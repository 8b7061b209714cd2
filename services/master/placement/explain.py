"""The numbers behind a choice, for `debug`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from services.master.placement.costs import StageCosts

_SHOWN = 5


def explain(costs: StageCosts, row: int) -> dict[str, Any]:
    """Of the chosen worker and of those that would have been soonest done, ms and counts."""
    able = np.flatnonzero(costs.penalty == 0.0)
    order = able[np.argsort((costs.ttft_ms + costs.decode_ms)[able], kind="stable")]
    shown = [row, *(int(other) for other in order[:_SHOWN] if other != row)]
    return {
        "chosen": costs.pool.ids[row],
        "able": len(able),
        "workers": {costs.pool.ids[r]: _numbers(costs, r) for r in shown},
    }


def _numbers(costs: StageCosts, row: int) -> dict[str, float]:
    pool = costs.pool
    free = float(pool.free_blocks[row])
    return {
        "hit_tokens": float(costs.hits[row]),
        "queue_ms": float(costs.queue_ms[row]),
        "work_ms": float(costs.work_ms[row]),
        "decode_ms": float(costs.decode_ms[row]),
        "ttft_ms": float(costs.ttft_ms[row]),
        "step_ms": float(pool.step_ms[row]),
        "requests": float(pool.requests[row]),
        "queued_tokens": float(pool.queued_tokens[row]),
        "context_tokens": float(pool.context_tokens[row]),
        "free_blocks": free if math.isfinite(free) else -1.0,
    }
