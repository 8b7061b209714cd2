"""The numbers behind a choice, for `debug`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from services.master.placement.costs import View

_SHOWN = 5


def explain(view: View, row: int) -> dict[str, Any]:
    """Of the chosen worker and of those that would have been soonest done, ms and counts."""
    able = np.flatnonzero(view.penalty == 0.0)
    order = able[np.argsort((view.ttft_ms + view.decode_ms)[able], kind="stable")]
    shown = [row, *(int(other) for other in order[:_SHOWN] if other != row)]
    return {
        "chosen": view.pool.ids[row],
        "able": len(able),
        "workers": {view.pool.ids[r]: _numbers(view, r) for r in shown},
    }


def _numbers(view: View, row: int) -> dict[str, float]:
    pool = view.pool
    free = float(pool.free_blocks[row])
    return {
        "hit_tokens": float(view.hits[row]),
        "queue_ms": float(view.queue_ms[row]),
        "work_ms": float(view.work_ms[row]),
        "decode_ms": float(view.decode_ms[row]),
        "ttft_ms": float(view.ttft_ms[row]),
        "step_ms": float(pool.step_ms[row]),
        "requests": float(pool.requests[row]),
        "queued_tokens": float(pool.queued_tokens[row]),
        "context_tokens": float(pool.context_tokens[row]),
        "free_blocks": free if math.isfinite(free) else -1.0,
    }
