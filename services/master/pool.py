"""The load of all workers of one kind, in columns, so that a request is priced on all at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from protocol.registry import InstanceInfo, Load, Rates
from services.master.config import MasterConfig

Floats = NDArray[np.float64]
_UNUSED = MappingProxyType(
    {
        "penalty": math.inf, "max_running": 1.0, "bandwidth": 1.0, "free_blocks": math.inf,
        "room": math.inf, "spare": math.inf,
    }
)  # fmt: skip
_STEP = 64
_SHARE = 0.02  # of an unmeasured decode step that each request adds
_COLUMNS = (
    "penalty", "least_free", "busy_until", "others_until", "send_until", "requests",
    "queued_tokens", "context_tokens", "free_blocks", "total_blocks", "max_running", "base_ms",
    "token_ms", "cached_ms", "step_ms", "step_request_ms", "step_context_ms", "bandwidth",
    "kv_bytes", "kv_ms", "step_now", "room", "spare",
)  # fmt: skip


@dataclass(eq=False, slots=True)
class Charge:
    """What one request was counted for on one row, from placement to its end.

    Until `visible_at` (ms) the worker's own reports do not show it.
    """

    pool: Pool
    row: int
    visible_at: float
    work_ms: float = 0.0
    tokens: float = 0.0
    context: float = 0.0
    blocks: float = 0.0
    open: bool = True
    life: int = 0

    @property
    def live(self) -> bool:
        """Not released, and the worker it was counted on is still there."""
        return self.open and self.pool.lives[self.row] == self.life


class Pool:
    """Rows of workers; every column is a float64 array [rows]. Times are ms of the caller's clock.

    `slots` [rows], integers, number the workers in the cache indices; `ids` are their names,
    `lives` counts the workers that a row has had.
    `penalty` 0: may be used; inf: drained, broken or no worker at all. `busy_until`: when the work
    counted so far is done, `others_until` that of it which was not placed here; `send_until`: the
    same of embeddings to send. `requests`, tokens and
    blocks: the last report and what was placed since; free blocks below 0 are promised twice.
    With `least_free` blocks or fewer a worker is full. `base_ms`, `token_ms`, `cached_ms` price
    the work of this kind of worker, media tokens of an encoder, prompt tokens of others; `kv_ms`
    the transfer of one token's KV. Derived: `step_now`, a decode step as it is; `room`, requests
    until some must wait; `spare`, free blocks until full.
    """

    penalty: Floats
    least_free: Floats
    busy_until: Floats
    others_until: Floats
    send_until: Floats
    requests: Floats
    queued_tokens: Floats
    context_tokens: Floats
    free_blocks: Floats
    total_blocks: Floats
    max_running: Floats
    base_ms: Floats
    token_ms: Floats
    cached_ms: Floats
    step_ms: Floats
    step_request_ms: Floats
    step_context_ms: Floats
    bandwidth: Floats
    kv_bytes: Floats
    kv_ms: Floats
    step_now: Floats
    room: Floats
    spare: Floats

    def __init__(self, kind: str, config: MasterConfig) -> None:
        self.kind = kind
        self._config = config
        self._free: list[int] = []
        self._open: list[list[Charge]] = []
        self.ids: list[str] = []
        self.lives: list[int] = []
        self.slots = np.zeros(0, np.intp)
        self.count = 0
        self.able = False
        for name in _COLUMNS:
            setattr(self, name, np.zeros(0))

    def __len__(self) -> int:
        """Rows, unused ones included."""
        return len(self.ids)

    def add(self, info: InstanceInfo, slot: int, now_ms: float) -> int:
        """A row for a worker."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        self.ids[row] = info.instance_id
        self.count += 1
        for name in _COLUMNS:
            getattr(self, name)[row] = 0.0
        self.slots[row] = slot
        self.max_running[row] = info.max_running or math.inf
        self.kv_bytes[row] = info.kv_bytes_per_token
        self.report(row, info.load, now_ms)
        self.allow(row, True)
        return row

    def allow(self, row: int, allowed: bool) -> None:
        """Whether a row may be used; `able` tells whether any may."""
        self.penalty[row] = 0.0 if allowed else math.inf
        self.able = bool((self.penalty == 0.0).any())

    def _grow(self) -> None:
        start = len(self.ids)
        for name in _COLUMNS:
            column = np.append(getattr(self, name), np.full(_STEP, _UNUSED.get(name, 0.0)))
            setattr(self, name, column)
        self.slots = np.append(self.slots, np.zeros(_STEP, np.intp))
        self.ids += [""] * _STEP
        self.lives += [0] * _STEP
        self._open += [[] for _ in range(_STEP)]
        self._free += range(start + _STEP - 1, start - 1, -1)

    def remove(self, row: int) -> None:
        self.lives[row] += 1
        self._open[row] = []
        for name in _COLUMNS:
            getattr(self, name)[row] = _UNUSED.get(name, 0.0)
        self.allow(row, False)
        self.ids[row] = ""
        self._free.append(row)
        self.count -= 1

    def report(self, row: int, load: Load, now_ms: float) -> None:
        """A worker's own view, plus what was placed there and cannot be in it yet."""
        self._set_rates(row, load.rates)
        kept = [c for c in self._open[row] if c.live and (c.work_ms or c.visible_at > now_ms)]
        unseen = [c for c in kept if c.visible_at > now_ms]
        self._open[row] = kept
        work, others = self._reported(row, load, [c for c in kept if c.visible_at <= now_ms])
        self.others_until[row] = now_ms + others
        self.busy_until[row] = now_ms + work + sum(c.work_ms for c in unseen)
        self.requests[row] = load.queued + load.running + len(unseen)
        self.queued_tokens[row] = load.queued_tokens + sum(c.tokens for c in unseen)
        self.context_tokens[row] = load.context_tokens + sum(c.context for c in unseen)
        self.total_blocks[row] = load.total_blocks
        self.least_free[row] = self._least_free(load.total_blocks)
        free = load.free_blocks if load.total_blocks else math.inf
        self.free_blocks[row] = free - sum(c.blocks for c in unseen)
        self._derive(row)

    def _reported(self, row: int, load: Load, seen: list[Charge]) -> tuple[float, float]:
        """ms of work in a report, and how much of it is not of `seen`, the charges it covers.

        A worker reports the whole prompt of a request that waits, also what its cache will save;
        what was placed from here is known to take no longer than it was charged for.
        """
        reported = load.queued_tokens * float(self.token_ms[row])
        reported += load.queued * float(self.base_ms[row])
        here = load.queued + load.running
        others = reported * max(0, here - len(seen)) / here if here else 0.0
        return min(reported, others + sum(c.work_ms for c in seen)), others

    def _derive(self, row: int) -> None:
        """What follows from a row's load, so that no request has to reckon it for all rows."""
        requests = self.requests[row]
        step = self.step_ms[row] + requests * self.step_request_ms[row]
        self.step_now[row] = step + self.context_tokens[row] * self.step_context_ms[row]
        self.room[row] = self.max_running[row] - requests
        self.spare[row] = self.free_blocks[row] - self.least_free[row]

    def _least_free(self, total_blocks: int) -> float:
        usage = self._config.busy_kv_usage
        return (1.0 - usage) * total_blocks if usage and total_blocks else -1.0

    def _set_rates(self, row: int, rates: Rates) -> None:
        config = self._config
        if self.kind == "encode":
            self.base_ms[row] = rates.encode_base_ms
            self.token_ms[row] = rates.encode_ms_per_token or config.encode_ms_per_token
        else:
            self.base_ms[row] = rates.prefill_base_ms
            self.token_ms[row] = rates.prefill_ms_per_token or config.prefill_ms_per_token
        measured = rates.decode_base_ms or rates.decode_ms_per_request
        guess = 0.0 if measured else config.decode_ms_per_step
        self.cached_ms[row] = rates.prefill_ms_per_cached_token
        self.step_ms[row] = rates.decode_base_ms or guess
        self.step_request_ms[row] = rates.decode_ms_per_request or guess * _SHARE
        self.step_context_ms[row] = rates.decode_ms_per_context_token
        self.bandwidth[row] = rates.transfer_bytes_per_ms or config.transfer_bytes_per_ms
        self.kv_ms[row] = self.kv_bytes[row] / self.bandwidth[row]

    def charge(self, charge: Charge, now_ms: float) -> None:
        """Count a placed request at once."""
        row = charge.row
        charge.life = self.lives[row]
        self.busy_until[row] = max(self.busy_until[row], now_ms) + charge.work_ms
        self.requests[row] += 1
        self.queued_tokens[row] += charge.tokens
        self.context_tokens[row] += charge.context
        self.free_blocks[row] -= charge.blocks
        self._derive(row)
        self._open[row].append(charge)

    def release(self, charge: Charge, now_ms: float, *, done: bool) -> None:
        """Take a charge back; `done` false if its work was not and will not be done."""
        if not charge.live:
            return
        charge.open = False
        row = charge.row
        if charge in self._open[row]:
            self._open[row].remove(charge)
        self.requests[row] = max(0.0, self.requests[row] - 1)
        self.queued_tokens[row] = max(0.0, self.queued_tokens[row] - charge.tokens)
        self.context_tokens[row] = max(0.0, self.context_tokens[row] - charge.context)
        self.free_blocks[row] += charge.blocks
        self._derive(row)
        if self.requests[row] == 0:
            self.busy_until[row] = now_ms
        elif not done:
            self.busy_until[row] = max(now_ms, self.busy_until[row] - charge.work_ms)
        elif self.kind in ("encode", "prefill"):
            left = sum(c.work_ms for c in self._open[row])
            self.busy_until[row] = max(now_ms, float(self.others_until[row])) + left
