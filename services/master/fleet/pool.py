"""The load of all workers of one kind, in columns, so that a request is priced on all at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from protocol.refs import compatibility_of
from protocol.registry import InstanceInfo, Load
from services.master.config import MasterConfig
from services.master.fleet.columns import Floats
from services.master.fleet.priced_columns import PricedColumns

_STEP = 64  # rows added at once, as each time all columns are copied
_PATIENCE_MS = 5_000.0  # several heartbeats and the way of a proxy's report
_CARRIED = (
    "busy_until", "others_until", "send_until", "requests", "queued_tokens", "context_tokens",
    "free_blocks", "total_blocks",
)  # fmt: skip


@dataclass(eq=False, slots=True)
class Charge:
    """What one request was counted for on one row, from placement to its end.

    `pool`, `row`: the worker, where it stands now.
    `visible_at`: until then (ms) the worker's own reports do not show it.
    `work_ms`: its encoding or prefill.
    `encode_ms`: of a prefill's work, what encoding its media there takes.
    `tokens`: to be computed.
    `context`: tokens to be decoded on.
    `blocks`: of KV.
    `open`: it has not been released.
    `shown`: a report was to show it.
    `life`: which of the row's workers it was counted on; a row is used again.
    `awaits`: stages of the request that have to end elsewhere before this one can begin.
    `haste`: decode steps per ms that its objective asks for, 0 for no objective.
    """

    pool: Pool
    row: int
    visible_at: float
    work_ms: float = 0.0
    tokens: float = 0.0
    context: float = 0.0
    blocks: float = 0.0
    open: bool = True
    shown: bool = False
    life: int = 0
    encode_ms: float = 0.0
    awaits: int = 0
    haste: float = 0.0

    @property
    def live(self) -> bool:
        """Not released, and the worker it was counted on is still there."""
        return self.open and self.pool.lives[self.row] == self.life


class Pool(PricedColumns):
    """Rows of workers of one kind.

    `slots` [rows], integers, number the workers in the cache indices; `stays` [rows], whether one
    may be used now or later: it is there and does not drain; `ids` are their names,
    `lives` counts the workers that a row has had; `able`, how many rows have no penalty; `shares`,
    the sum of their `share`. `kv_kinds` and `ec_kinds` are the workers' compatibilities of KV and
    of embeddings, "" if they do not say.
    """

    def __init__(self, kind: str, config: MasterConfig) -> None:
        super().__init__(kind, config)
        self._free: list[int] = []
        self._open: list[list[Charge]] = []
        self._awaiting: set[Charge] = set()  # those that await stages, or did at the last look
        self._short_since: list[float] = []
        self.ids: list[str] = []
        self.lives: list[int] = []
        self.kv_kinds: list[str] = []
        self.ec_kinds: list[str] = []
        self.kinds_of_kv: frozenset[str] = frozenset()
        self.kinds_of_ec: frozenset[str] = frozenset()
        self.slots = np.zeros(0, np.intp)
        self.stays = np.zeros(0, np.bool_)
        self.count = 0
        self.able = 0

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
        self._be_of_kind(row, compatibility_of(info.kv_endpoint), info.ec_compatibility)
        self._reset(row, used=True)
        self.slots[row] = slot
        self.max_running[row] = info.max_running or math.inf
        self.kv_bytes[row] = info.kv_bytes_per_token
        self.encodes[row] = info.role == "pdfusion" or info.encodes
        self.report(row, info.load, now_ms)
        self.allow(row, True)
        return row

    def allow(self, row: int, allowed: bool, *, stays: bool = True) -> None:
        """Whether a row may be used, and if not, whether it `stays` to be used later."""
        self.penalty[row] = 0.0 if allowed else math.inf
        self.stays[row] = stays
        self.able = int(np.count_nonzero(self.penalty == 0.0))
        self._derive(row)
        self.shares = float(self.share.sum())  # anew, now and then, as small errors add up

    def set_busy_kv_usage(self, usage: float) -> None:
        """Another share of KV blocks with which a worker is full, from here on."""
        self.busy_kv_usage = usage
        for row, name in enumerate(self.ids):
            if name:
                self.least_free[row] = self._least_free(int(self.total_blocks[row]))
                self._derive(row)

    def _grow(self) -> None:
        start = len(self.ids)
        self._add_rows(_STEP)
        self.slots = np.append(self.slots, np.zeros(_STEP, np.intp))
        self.stays = np.append(self.stays, np.zeros(_STEP, np.bool_))
        self.ids += [""] * _STEP
        self.lives += [0] * _STEP
        self.kv_kinds += [""] * _STEP
        self.ec_kinds += [""] * _STEP
        self._open += [[] for _ in range(_STEP)]
        self._short_since += [math.inf] * _STEP
        self._free += range(start + _STEP - 1, start - 1, -1)

    def remove(self, row: int) -> None:
        self.lives[row] += 1
        self._open[row], self._short_since[row] = [], math.inf
        self._reset(row, used=False)
        self.allow(row, False, stays=False)
        self.ids[row] = ""
        self._be_of_kind(row, "", "")
        self._free.append(row)
        self.count -= 1

    def move(self, row: int, to: Pool, info: InstanceInfo, now_ms: float) -> int:
        """Take a worker over into another pool, with its load and what it is charged for, which
        ends there; its row there. It may be used once it is allowed."""
        new = to.add(info, int(self.slots[row]), now_ms)
        to._tell(new, self._told[row])
        for name in _CARRIED:
            getattr(to, name)[new] = getattr(self, name)[row]
        to.least_free[new] = to._least_free(int(to.total_blocks[new]))
        for charge in self._open[row]:
            if charge.live:
                charge.pool, charge.row, charge.life = to, new, to.lives[new]
                to.haste[new] = max(to.haste[new], charge.haste)
                to._open[new].append(charge)
                to._note(charge)
        self.remove(row)
        to.allow(new, False)
        return new

    def _be_of_kind(self, row: int, kv: str, ec: str) -> None:
        self.kv_kinds[row], self.ec_kinds[row] = kv, ec
        self.kinds_of_kv, self.kinds_of_ec = frozenset(self.kv_kinds), frozenset(self.ec_kinds)

    def report(self, row: int, load: Load, now_ms: float) -> None:
        """A worker's own view, plus what was placed there and cannot be in it yet.

        It has the requests that were placed there and have not ended, if not more: some may be too
        late for the report, and some that are not in it any more will only be told of as ended.
        """
        self._tell(row, load.rates)
        here = load.queued + load.running
        kept = self._kept(row, here, now_ms)
        unseen = [c for c in kept if not c.shown]
        work, others = self._reported(row, load, [c for c in kept if c.shown and c.work_ms])
        self.others_until[row] = now_ms + others
        self.busy_until[row] = now_ms + work + sum(c.work_ms for c in unseen)
        self.requests[row] = max(here, len(kept))
        self.queued_tokens[row] = load.queued_tokens + sum(c.tokens for c in unseen)
        self.context_tokens[row] = load.context_tokens + sum(c.context for c in unseen)
        self.total_blocks[row] = load.total_blocks
        self.least_free[row] = self._least_free(load.total_blocks)
        free = load.free_blocks if load.total_blocks else math.inf
        self.free_blocks[row] = free - sum(c.blocks for c in unseen)
        self._derive(row)

    def observe(self, row: int, load: Load, now_ms: float) -> None:
        """What was read of a worker that reports nothing by itself, and cannot tell how much work
        it has: how many requests and free blocks. Its work is what was placed there."""
        here = load.queued + load.running
        kept = self._kept(row, here, now_ms)
        self.requests[row] = max(here, len(kept))
        if not here and not kept:
            self.busy_until[row] = now_ms
        if load.total_blocks:
            self.total_blocks[row] = load.total_blocks
            self.least_free[row] = self._least_free(load.total_blocks)
            unseen = sum(c.blocks for c in kept if not c.shown)
            self.free_blocks[row] = load.free_blocks - unseen
        self._derive(row)

    def _kept(self, row: int, here: int, now_ms: float) -> list[Charge]:
        """Charges that still count, of a worker that says it has `here` requests. If it goes on
        saying that it has fewer, the end of the oldest of them will not be reported: their proxy
        may be gone."""
        kept = [c for c in self._open[row] if c.live]
        for charge in kept:
            charge.shown = charge.visible_at <= now_ms
        lost, since = sum(c.shown for c in kept) - here, self._short_since[row]
        if lost > 0 and now_ms - since > _PATIENCE_MS:
            for charge in [c for c in kept if c.shown][:lost]:
                charge.open = False
            lost = 0
        self._short_since[row] = min(since, now_ms) if lost > 0 else math.inf
        kept = self._open[row] = [c for c in kept if c.open]
        self.haste[row] = max((c.haste for c in kept), default=0.0)
        return kept

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

    def awaiting(self) -> tuple[Floats, Floats, Floats]:
        """(ms of work, requests, blocks) of what was placed there and waits for stages elsewhere.
        [rows] each"""
        work, requests, blocks = (np.zeros(len(self)) for _ in range(3))
        self._awaiting = {
            one for one in self._awaiting if one.awaits > 0 and one.pool is self and one.live
        }
        for charge in self._awaiting:
            work[charge.row] += charge.work_ms
            requests[charge.row] += 1.0
            blocks[charge.row] += charge.blocks
        return work, requests, blocks

    def await_stages(self, charge: Charge, count: int) -> None:
        """So many further stages of the request have to end elsewhere before `charge` begins."""
        charge.awaits += count
        self._note(charge)

    def _note(self, charge: Charge) -> None:
        if charge.awaits > 0:
            self._awaiting.add(charge)

    def charge(self, charge: Charge, now_ms: float) -> None:
        """Count a placed request at once."""
        row, cells = charge.row, self.cells
        charge.life = self.lives[row]
        cells.busy_until[row] = max(cells.busy_until[row], now_ms) + charge.work_ms
        cells.requests[row] += 1.0
        cells.queued_tokens[row] += charge.tokens
        cells.context_tokens[row] += charge.context
        cells.free_blocks[row] -= charge.blocks
        cells.haste[row] = max(cells.haste[row], charge.haste)
        self._derive(row)
        self._open[row].append(charge)
        self._note(charge)

    def release(self, charge: Charge, now_ms: float, *, done: bool, lapsed: bool = False) -> None:
        """Take a charge back; `done` false if its work was not and will not be done. `lapsed`:
        its end was not reported, so that a report which was to show it tells all there is
        to know."""
        if not charge.live:
            return
        charge.open = False
        row = charge.row
        if charge in self._open[row]:
            self._open[row].remove(charge)
        cells = self.cells
        if charge.haste and charge.haste >= cells.haste[row]:
            cells.haste[row] = max((c.haste for c in self._open[row] if c.live), default=0.0)
        if lapsed and charge.shown:
            return
        cells.requests[row] = max(0.0, cells.requests[row] - 1.0)
        cells.queued_tokens[row] = max(0.0, cells.queued_tokens[row] - charge.tokens)
        cells.context_tokens[row] = max(0.0, cells.context_tokens[row] - charge.context)
        cells.free_blocks[row] += charge.blocks
        self._derive(row)
        # All that was reckoned of an idle worker is void: small errors do not add up over a day.
        if cells.requests[row] == 0.0:
            cells.busy_until[row] = now_ms
        elif not done:
            cells.busy_until[row] = max(now_ms, cells.busy_until[row] - charge.work_ms)
        elif self.kind in ("encode", "prefill"):
            left = sum(c.work_ms for c in self._open[row])
            cells.busy_until[row] = max(now_ms, float(self.others_until[row])) + left
