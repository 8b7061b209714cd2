"""What was placed on workers and waits for stages elsewhere: no load of theirs yet."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.master.fleet.columns import Floats


class Awaiting(NamedTuple):
    """Of each row of a pool. [rows] each"""

    work_ms: Floats  # encoding or prefill
    requests: Floats
    context: Floats  # tokens to be decoded on, as far as they are counted
    blocks: Floats  # of KV

    @staticmethod
    def none(rows: int) -> Awaiting:
        return Awaiting(*np.zeros((4, rows)))

    def add(self, row: int, work_ms: float, context: float, blocks: float) -> None:
        """One more request."""
        self.work_ms[row] += work_ms
        self.requests[row] += 1.0
        self.context[row] += context
        self.blocks[row] += blocks
