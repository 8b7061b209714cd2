"""What is known of workers, in columns: one array for each figure, one row for each worker."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# Of a row without a worker, where 0 would do harm: it is never chosen, no division is by 0, and
# it never seems to be short of places or blocks, for which all prices would take longer.
_UNUSED = MappingProxyType(
    {
        "penalty": math.inf, "max_running": 1.0, "bandwidth": 1.0, "free_blocks": math.inf,
        "room": math.inf, "spare": math.inf,
    }
)  # fmt: skip
_COLUMNS = (
    "penalty", "least_free", "busy_until", "others_until", "send_until", "requests",
    "queued_tokens", "context_tokens", "free_blocks", "total_blocks", "max_running", "base_ms",
    "token_ms", "cached_ms", "host_ms", "disk_ms", "step_ms", "step_request_ms",
    "step_context_ms", "bandwidth", "kv_bytes", "kv_ms", "step_now", "more_step_ms",
    "more_context_ms", "room", "spare", "share", "encodes", "haste",
)  # fmt: skip


@dataclass(slots=True)
class Cells:
    """Columns of a `Pool` by the same names, cell by cell: to read one of an array, and to reckon
    with the NumPy scalar that it gives, takes several times as long."""

    penalty: memoryview[float]  # 0 may be used; inf: not
    busy_until: memoryview[float]  # ms of the caller's clock
    requests: memoryview[float]  # queued or running
    queued_tokens: memoryview[float]  # tokens to be computed
    context_tokens: memoryview[float]  # tokens of all that decode
    free_blocks: memoryview[float]  # KV blocks
    max_running: memoryview[float]  # requests at once
    least_free: memoryview[float]  # KV blocks: with so many free it is full
    step_ms: memoryview[float]  # ms of a decode step
    step_request_ms: memoryview[float]  # ms that each request adds to it
    step_context_ms: memoryview[float]  # ms that each token of their contexts adds
    step_now: memoryview[float]  # ms of a decode step as it is
    more_step_ms: memoryview[float]  # ms that one more request adds
    more_context_ms: memoryview[float]  # ms that each token of its context adds
    room: memoryview[float]  # requests until some must wait
    spare: memoryview[float]  # KV blocks until full
    share: memoryview[float]  # 1 / (requests + 1), 0 with a penalty
    haste: memoryview[float]  # decode steps per ms that objectives ask for


class Columns:
    """Every column is a float64 array [rows]. Times are ms of the caller's clock. Requests, tokens
    and blocks are the last report's and what was placed since. `none` [rows] are zeros."""

    penalty: Floats  # 0 may be used; inf drained, broken or no worker at all
    least_free: Floats  # with so many free blocks or fewer it is full
    busy_until: Floats  # when the work counted so far is done
    others_until: Floats  # the same of that which was not placed here
    send_until: Floats  # the same of embeddings to send
    requests: Floats  # queued or running
    queued_tokens: Floats  # to be computed
    context_tokens: Floats  # of all requests that decode
    free_blocks: Floats  # of KV; below 0 some are promised twice
    total_blocks: Floats  # of KV
    max_running: Floats  # requests computed at once, inf if it does not say
    base_ms: Floats  # price of its kind of work, each time
    token_ms: Floats  # and by token: media tokens of an encoder, computed prompt tokens of others
    cached_ms: Floats  # and by cached prompt token
    host_ms: Floats  # until a token's KV is back from host memory
    disk_ms: Floats  # until a token's KV is back from disk
    step_ms: Floats  # of a decode step
    step_request_ms: Floats  # and by request in it
    step_context_ms: Floats  # and by token of their contexts
    bandwidth: Floats  # bytes per ms of transfers
    kv_bytes: Floats  # of one token's KV
    kv_ms: Floats  # of its transfer
    step_now: Floats  # derived: a decode step as it is
    more_step_ms: Floats  # derived: what one more request makes of it, its own and the others' time
    more_context_ms: Floats  # derived: and by token of that request's context
    room: Floats  # derived: requests until some must wait
    spare: Floats  # derived: free blocks until full
    share: Floats  # derived: of one more request, 0 for those with a penalty
    encodes: Floats  # 1 if it encodes media by itself
    # Decode steps per ms that the strictest objective placed there asks for, 0 for none.
    haste: Floats

    def __init__(self) -> None:
        for name in _COLUMNS:
            setattr(self, name, np.zeros(0))
        self.none = np.zeros(0)
        self.cells = self._by_cell()

    def _add_rows(self, count: int) -> None:
        for name in _COLUMNS:
            column = np.append(getattr(self, name), np.full(count, _UNUSED.get(name, 0.0)))
            setattr(self, name, column)
        self.none = np.zeros(len(self.penalty))
        # Prices of many requests share it.
        self.none.flags.writeable = False
        # The columns are other arrays now: what views of the old ones write would be lost.
        self.cells = self._by_cell()

    def _by_cell(self) -> Cells:
        columns = (memoryview(getattr(self, field.name)) for field in fields(Cells))
        return Cells(*cast("Iterator[memoryview[float]]", columns))

    def _reset(self, row: int, *, used: bool) -> None:
        for name in _COLUMNS:
            getattr(self, name)[row] = 0.0 if used else _UNUSED.get(name, 0.0)
