"""How many workers of each role an autoscaler should run: at once more when they are busy, fewer
only after a while in which fewer would have done."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from services.master.config import MasterConfig
from services.master.fleet.columns import Floats
from services.master.fleet.fleet import Fleet
from services.master.fleet.pool import Pool

_LOOK_MS = 1e3
_MEMORY_MS = 15e3  # over which the share of busy workers is taken: a prompt is no trend
_DECODING = ("decode", "combined")
ROLES = ("encode", "prefill", *_DECODING)
# Before a worker, without an objective: more of both wants more workers
_BACKLOG_MS = 2e3  # of work
_BACKLOG_REQUESTS = 4.0
_SHARE_OF_TTFT = 0.5  # of the objective that the queue before prefill, or encode, may take


def backlog(config: MasterConfig, pool: Pool, now_ms: float) -> tuple[float, float]:
    """Of encode or prefill: (workers at work, workers that the work before them wants). Without an
    objective a few requests may wait at a worker, however long they take. Work that waits for other
    workers wants none here."""
    awaiting, usable = pool.awaiting(), pool.penalty == 0.0
    before_ms = np.maximum(pool.busy_until - awaiting.work_ms - now_ms, 0.0)[usable]
    if config.ttft_slo:
        queued = before_ms / (1e3 * config.ttft_slo * _SHARE_OF_TTFT)
    else:
        requests = np.maximum(pool.requests - awaiting.requests, 0.0)[usable]
        queued = np.minimum(before_ms / _BACKLOG_MS, requests / _BACKLOG_REQUESTS)
    return float(np.count_nonzero(before_ms)), float(queued.sum())


def computing(config: MasterConfig, busy: float, queued: float) -> float:
    """Of encode or prefill, by what `backlog` says, `busy` perhaps as a mean over some time."""
    return max(busy / config.wanted_utilisation, queued)


def decoding(config: MasterConfig, pool: Pool, waiting: int) -> float:
    """How many workers decode's load takes, fractions included: by what full batches would do, by
    KV blocks, and by the time of a step. `waiting`: requests that no worker has yet. They wait for
    decode workers if none of these could take one more, and count as much as those that decode.
    """
    usable = pool.penalty == 0.0
    if not (able := int(np.count_nonzero(usable))):
        return float(pool.count + (1 if waiting else 0))
    awaiting, places = pool.awaiting(), pool.max_running[usable]
    here = np.maximum(pool.requests - awaiting.requests, 0.0)[usable]
    context = np.maximum(pool.context_tokens - awaiting.context, 0.0)[usable]
    running = np.minimum(here, places)
    base = pool.step_ms[usable]
    added = running * pool.step_request_ms[usable] + context * pool.step_context_ms[usable]
    each = _by_step(base, added, running, pool.haste[usable])
    by_step = float((running * each).sum())
    batches = float(
        (_of_full_batches(base, added, running, places) + (here - running) / places).sum()
    )
    told = usable & (pool.total_blocks > 0.0)
    free = np.maximum(pool.free_blocks, 0.0) + awaiting.blocks
    blocks = float(pool.total_blocks[told].sum())
    used = max(0.0, blocks - float(free[told].sum())) / blocks * able if blocks else 0.0
    # Where KV is promised to requests still at prefill, prefill is short, not decode.
    no_blocks = (pool.spare[usable] <= 0.0) & (here > awaiting.requests[usable])
    most = np.minimum(places, config.busy_requests or math.inf)
    full = (here >= most) | no_blocks | ((running + 1.0) * each > 1.0)
    if full.all():
        batches += waiting * float((1.0 / most).mean())
        by_step += waiting * float(each.mean())
        used *= 1.0 + waiting / max(1.0, float(here.sum()))
    return max(batches, by_step, used) / config.wanted_utilisation


def _of_full_batches(base: Floats, added: Floats, running: Floats, places: Floats) -> Floats:
    """Tokens a second beside those of a batch that is full of such requests, 0 to 1: requests take
    `added` ms of a step, and `base` is taken once for all. [rows]"""
    step, share = base + added, running / places
    found: Floats = np.divide(base * share + added, step, out=share.copy(), where=step > 0.0)
    return found


def _by_step(base: Floats, added: Floats, running: Floats, haste: Floats) -> Floats:
    """Of each request, the share of those with which a worker's steps keep the strictest objective
    placed there. 0 of one that a request alone would miss: no further worker could keep it.
    [rows]"""
    counts = (running > 0.0) & (haste > 0.0) & (added > 0.0)
    found = np.zeros(len(running))
    fits = (1.0 / haste[counts] - base[counts]) * running[counts] / added[counts]
    found[counts] = np.divide(1.0, fits, out=np.zeros(len(fits)), where=fits >= 1.0)
    return found


@dataclass
class _Role:
    """`busy`: workers at work, as a mean. `peaks` are (ms, wanted) from the largest on, each the
    largest of those after it."""

    busy: float
    looked_at: float
    peaks: deque[tuple[float, int]] = field(default_factory=deque)

    def wants(self, count: int, now_ms: float, hold_ms: float) -> None:
        while self.peaks and self.peaks[-1][1] <= count:
            self.peaks.pop()
        self.peaks.append((now_ms, count))
        while self.peaks[0][0] < now_ms - hold_ms:
            self.peaks.popleft()


class WantedWorkers:
    """Of all models that a master knows. A role that has ever had a worker wants one at least."""

    def __init__(self, config: MasterConfig) -> None:
        self._config = config
        self._roles: dict[tuple[str, str], _Role] = {}
        self._looked_at = -math.inf

    def observe(
        self, fleets: Mapping[str, Fleet], waiting: Mapping[str, int], now_ms: float
    ) -> None:
        """Look at the load; `waiting` are requests by model. Call often."""
        if now_ms - self._looked_at < _LOOK_MS:
            return
        self._looked_at = now_ms
        for model, fleet in fleets.items():
            for kind in ROLES:
                pool = fleet.pools[kind]
                if pool.count or (model, kind) in self._roles:
                    self._observe(model, pool, waiting.get(model, 0), now_ms)

    def _observe(self, model: str, pool: Pool, waiting: int, now_ms: float) -> None:
        busy, queued = backlog(self._config, pool, now_ms)
        role = self._roles.get((model, pool.kind))
        if role is None:
            role = self._roles[model, pool.kind] = _Role(busy, now_ms)
            role.wants(pool.count, now_ms, math.inf)  # until more is known it is as it should be
        role.busy += (busy - role.busy) * (1.0 - math.exp((role.looked_at - now_ms) / _MEMORY_MS))
        role.looked_at = now_ms
        if pool.kind in _DECODING:
            wanted = decoding(self._config, pool, waiting)
        else:
            wanted = computing(self._config, role.busy, queued)
        hold_ms = self._config.wanted_hold * 1e3
        # A quotient of floats may lie just above the whole number that it stands for.
        role.wants(max(1, math.ceil(wanted - 1e-9)), now_ms, hold_ms)

    def counts(self) -> Iterator[tuple[str, str, int]]:
        """Model, role and workers."""
        for (model, kind), role in self._roles.items():
            yield model, kind, role.peaks[0][1]
