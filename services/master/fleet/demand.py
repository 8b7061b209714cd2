"""How many workers the load of a stage takes, at the share of their time that they should use."""

from __future__ import annotations

import math

import numpy as np

from services.master.config import MasterConfig
from services.master.fleet.pool import Pool

_BACKLOG_MS = 2e3  # of work before a worker without an objective: more wants more workers
_SHARE_OF_TTFT = 0.5  # of the objective that the queue before prefill, or encode, may take


def backlog(pool: Pool, now_ms: float) -> tuple[float, float]:
    """(workers at work, ms of work that is before all workers that may be used). Work that waits
    for other workers wants none here."""
    awaiting_ms, _, _ = pool.awaiting()
    before_ms = np.maximum(pool.busy_until - awaiting_ms - now_ms, 0.0)[pool.penalty == 0.0]
    return float(np.count_nonzero(before_ms)), float(before_ms.sum())


def computing(config: MasterConfig, busy: float, backlog_ms: float) -> float:
    """Of encode or prefill: by the workers that are busy, and by the work that waits."""
    objective_ms = (config.ttft_slo or 0.0) * 1e3
    bound_ms = objective_ms * _SHARE_OF_TTFT or _BACKLOG_MS
    return max(busy / config.wanted_utilisation, backlog_ms / bound_ms)


def decoding(config: MasterConfig, pool: Pool, waiting: int) -> float:
    """By the places in batches, by KV blocks, and by the time of a step. `waiting`: requests that
    no worker has yet, which wait for decode workers if these are full of requests that decode."""
    usable = pool.penalty == 0.0
    share, able = config.wanted_utilisation, int(np.count_nonzero(usable))
    if not able:
        return float(pool.count + (1 if waiting else 0))
    places = float(pool.max_running[usable].mean())
    _, awaiting, reserved = pool.awaiting()
    requests = float(np.maximum(pool.requests - awaiting, 0.0)[usable].sum())
    if requests >= places * able:
        requests += waiting
    wanted = requests / places / share if math.isfinite(places) else 0.0
    blocks = float(pool.total_blocks[usable].sum())
    if blocks > 0.0:
        free = np.maximum(pool.free_blocks, 0.0) + reserved
        used = max(0.0, blocks - float(free[usable].sum()))
        wanted = max(wanted, used / blocks * able / share)
    if config.tpot_slo:
        over = pool.step_now[usable] / (config.tpot_slo * 1e3)
        wanted = max(wanted, float(over.sum()))
    return wanted
