"""The rows of a pool: which worker has which, what tells workers apart, which may be used."""

from __future__ import annotations

import math

import numpy as np

from protocol.refs import compatibility_of
from protocol.registry import InstanceInfo
from services.master.config import MasterConfig
from services.master.fleet.priced_columns import PricedColumns
from services.master.fleet.recent_work import RecentWork

_STEP = 64  # rows added at once, as each time all columns are copied


class WorkerRows(PricedColumns):
    """Rows of workers of one kind."""

    def __init__(self, kind: str, config: MasterConfig) -> None:
        super().__init__(kind, config)
        self._free: list[int] = []
        self.ids: list[str] = []  # of the workers, "" for a row that is not used
        self.occupants: list[int] = []  # how many workers each row has had
        self.kv_kinds: list[str] = []  # compatibility of their KV, "" if they do not say
        self.ec_kinds: list[str] = []  # and of their embeddings
        self.kinds_of_kv: frozenset[str] = frozenset()
        self.kinds_of_ec: frozenset[str] = frozenset()
        self.slots = np.zeros(0, np.intp)  # the workers' numbers in the cache indices
        # Whether one may be used now or later: it is there and does not drain.
        self.stays = np.zeros(0, np.bool_)
        self.count = 0  # rows in use
        self.able = 0  # rows without a penalty
        self.recent = RecentWork()

    def __len__(self) -> int:
        """Rows, unused ones included."""
        return len(self.ids)

    def _take_row(self, info: InstanceInfo, slot: int) -> int:
        """A row for a worker, whose load is not known yet."""
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
        # Taken from the end: the lowest first, so that rows in use stay together.
        self._free += range(start + _STEP - 1, start - 1, -1)

    def _add_rows(self, count: int) -> None:
        super()._add_rows(count)
        self.recent.grow(count)
        self.slots = np.append(self.slots, np.zeros(count, np.intp))
        self.stays = np.append(self.stays, np.zeros(count, np.bool_))
        self.ids += [""] * count
        self.occupants += [0] * count
        self.kv_kinds += [""] * count
        self.ec_kinds += [""] * count

    def remove(self, row: int) -> None:
        """The worker of a row is gone."""
        self.occupants[row] += 1  # charges of the worker that was here do not count any more
        self._reset(row, used=False)
        self.allow(row, False, stays=False)
        self.ids[row] = ""
        self.recent.forget(row)
        # Or a kind that no worker has any more would keep pools mixed, which is dearer to place in.
        self._be_of_kind(row, "", "")
        self._free.append(row)
        self.count -= 1

    def _be_of_kind(self, row: int, kv: str, ec: str) -> None:
        self.kv_kinds[row], self.ec_kinds[row] = kv, ec
        self.kinds_of_kv, self.kinds_of_ec = frozenset(self.kv_kinds), frozenset(self.ec_kinds)
