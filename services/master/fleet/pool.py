"""The load of all workers of one kind, in columns, so that a request is priced on all at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protocol.registry import InstanceInfo, Load
from services.master.config import MasterConfig
from services.master.fleet.awaiting import Awaiting
from services.master.fleet.worker_rows import WorkerRows

_PATIENCE_MS = 5_000.0  # several heartbeats and the way of a proxy's report
_TOLD = ("encode", "prefill")  # kinds of workers whose every call's end is told by proxies
_CARRIED = (
    "busy_until", "others_until", "send_until", "requests", "queued_tokens", "context_tokens",
    "free_blocks", "total_blocks",
)  # fmt: skip


@dataclass(eq=False, slots=True)
class Charge:
    """What one request was counted for on one row, from placement to its end."""

    pool: Pool  # where the worker stands at the time: a move changes it
    row: int  # and which row of it is the worker's
    visible_at: float  # until then (ms) the worker's own reports do not show it
    work_ms: float = 0.0  # its encoding or prefill
    tokens: float = 0.0  # to be computed
    context: float = 0.0  # tokens to be decoded on
    blocks: float = 0.0  # of KV
    open: bool = True  # it has not been released
    shown: bool = False  # a report was to show it
    occupant: int = 0  # which of the row's workers it was counted on: a row is used again
    encode_ms: float = 0.0  # of a prefill's work, what encoding its media there takes
    awaits: int = 0  # stages of the request that have to end elsewhere before this can begin
    haste: float = 0.0  # decode steps per ms that its objective asks for, 0 for no objective
    computed: bool = False  # its encoding or prefill is done, and it goes on to decode there

    @property
    def live(self) -> bool:
        """Not released, and the worker it was counted on is still there."""
        return self.open and self.pool.occupants[self.row] == self.occupant


class Pool(WorkerRows):
    """The workers of one kind, and what was charged for requests placed there."""

    def __init__(self, kind: str, config: MasterConfig) -> None:
        super().__init__(kind, config)
        self._open: list[list[Charge]] = []
        self._awaiting: set[Charge] = set()  # those that await stages, or did at the last look
        self._short_since: list[float] = []  # since when a worker says it has fewer than charged

    def add(self, info: InstanceInfo, slot: int, now_ms: float) -> int:
        """A row for a worker."""
        row = self._take_row(info, slot)
        self.report(row, info.load, now_ms)
        self.allow(row, True)
        return row

    def _add_rows(self, count: int) -> None:
        super()._add_rows(count)
        self._open += [[] for _ in range(count)]
        self._short_since += [math.inf] * count

    def remove(self, row: int) -> None:
        self._open[row], self._short_since[row] = [], math.inf
        super().remove(row)

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
                charge.pool, charge.row, charge.occupant = to, new, to.occupants[new]
                to.haste[new] = max(to.haste[new], charge.haste)
                to._open[new].append(charge)
                to._note(charge)
        self.remove(row)
        to.allow(new, False)
        return new

    def report(self, row: int, load: Load, now_ms: float) -> None:
        """A worker's own view, plus what was placed there and cannot be in it yet. It has what was
        placed and has not ended, if not more: ends may only be told later."""
        self._tell(row, load.rates)
        here = load.queued + load.running
        kept = self._kept(row, here, now_ms)
        unseen = [c for c in kept if not c.shown]
        seen = [c for c in kept if c.shown and c.work_ms]
        work, others, tokens = self._reported(row, load, seen)
        self.others_until[row] = now_ms + others
        waiting = [c for c in unseen if not c.computed]
        self.busy_until[row] = now_ms + work + sum(c.work_ms for c in waiting)
        self.requests[row] = max(here, len(kept))
        self.queued_tokens[row] = tokens + sum(c.tokens for c in waiting)
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
        # It tells neither, so charges whose end is never reported would count for good.
        self.queued_tokens[row] = sum(c.tokens for c in kept if not c.computed)
        self.context_tokens[row] = sum(c.context for c in kept)
        if not here and not kept:
            self.busy_until[row] = now_ms
        elif not load.queued and self.kind not in _TOLD:
            # None waits: the engine has taken in no more prompts than its next step has room for.
            left = [(c.work_ms, c.shown and c.awaits <= 0) for c in kept if not c.computed]
            taken = max((work for work, there in left if there), default=0.0)
            coming = sum(work for work, there in left if not there)
            self.busy_until[row] = min(self.busy_until[row], now_ms + taken + coming)
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

    def _reported(self, row: int, load: Load, seen: list[Charge]) -> tuple[float, float, float]:
        """ms of work in a report, how much of it is not of `seen`, the charges it covers, and its
        tokens to be computed: those of `seen` are no more than charged, though whole prompts are
        reported, with what caches save."""
        here = load.queued + load.running
        share = max(0, here - len(seen)) / here if here else float(not seen)
        work = load.queued_tokens * float(self.token_ms[row])
        work += load.queued * float(self.base_ms[row])
        left = [c for c in seen if not c.computed]
        tokens = min(load.queued_tokens, share * load.queued_tokens + sum(c.tokens for c in left))
        return min(work, share * work + sum(c.work_ms for c in left)), share * work, tokens

    def awaiting(self) -> Awaiting:
        """What was placed there and waits for stages elsewhere. Reports of workers show it, but no
        context, which is of requests that decode."""
        found = Awaiting.none(len(self))
        self._awaiting = {c for c in self._awaiting if c.awaits > 0 and c.pool is self and c.live}
        for one in self._awaiting:
            found.add(one.row, one.work_ms, 0.0 if one.shown else one.context, one.blocks)
        return found

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
        charge.occupant = self.occupants[row]
        cells.busy_until[row] = max(cells.busy_until[row], now_ms) + charge.work_ms
        if charge.work_ms:
            self.recent.add(row, charge.work_ms, now_ms)
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
        # Only the strictest one can have set it: for others no charge has to be looked at.
        if charge.haste and charge.haste >= cells.haste[row]:
            cells.haste[row] = max((c.haste for c in self._open[row] if c.live), default=0.0)
        if lapsed and charge.shown:
            return
        cells.requests[row] = max(0.0, cells.requests[row] - 1.0)
        if not charge.computed:
            cells.queued_tokens[row] = max(0.0, cells.queued_tokens[row] - charge.tokens)
        cells.context_tokens[row] = max(0.0, cells.context_tokens[row] - charge.context)
        cells.free_blocks[row] += charge.blocks
        self._derive(row)
        # All that was reckoned of an idle worker is void: small errors do not add up over a day.
        if cells.requests[row] == 0.0:
            cells.busy_until[row] = now_ms
        elif not done and not charge.computed:
            cells.busy_until[row] = max(now_ms, cells.busy_until[row] - charge.work_ms)
        # Its work took more or less than foreseen: what is left is reckoned anew. Not where charges
        # last until decode ends: most of their work is done by then, and would count again.
        elif self.kind in _TOLD:
            cells.busy_until[row] = self._busy_with_rest(row, now_ms)

    def prompt_computed(self, charge: Charge, now_ms: float, *, ended: bool) -> None:
        """The prompt of a request has been computed, which goes on to decode there, or has `ended`
        by now. So have those placed there before it, whose reports may never come: engines take
        prompts in their order, but for those that wait for embeddings."""
        if not charge.live or charge.computed:
            return
        row, cells = charge.row, self.cells
        for one in self._open[row]:
            if one.live and not one.computed and (one is charge or one.awaits <= 0):
                one.computed = True
                cells.queued_tokens[row] = max(0.0, cells.queued_tokens[row] - one.tokens)
            if one is charge:
                break
        rest = self._busy_with_rest(row, now_ms)
        # At a request's end later prompts may have been computed as well: it cannot be more.
        cells.busy_until[row] = min(rest, cells.busy_until[row]) if ended else rest

    def _busy_with_rest(self, row: int, now_ms: float) -> float:
        """Until when, if all that was placed there and has not been computed takes as long as it
        was charged for."""
        left = sum(c.work_ms for c in self._open[row] if not c.computed)
        return max(now_ms, float(self.others_until[row])) + left
