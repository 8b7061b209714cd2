"""Which workers of a pool had much to compute lately: who gets work often gets it soon again."""

from __future__ import annotations

import math

import numpy as np

from services.master.fleet.columns import Floats

_WINDOW_MS = 30_000.0  # work of so long ago counts for 1/e
# Busy for so much of the time, workers count as alike: a single request on an idle fleet tells
# nothing of where the next ones go.
_LEAST = 0.1
_MOST_WINDOWS = 10.0


class RecentWork:
    """Of each row, the share of the time for which what was placed there keeps a worker busy: 1 has
    no pause. As of the last placement, weighted by how long ago each was.

    Shares are kept `_grown` times as large, which grows instead of all of them shrinking: so a
    placement touches its own row alone."""

    def __init__(self) -> None:
        self._busy = np.zeros(0)
        self._total = 0.0
        self._grown = 1.0
        self._at_ms = self._begun_ms = 0.0  # of the last placement; when `_grown` was 1

    def add(self, row: int, work_ms: float, now_ms: float) -> None:
        """Count work that is placed on a row now."""
        if now_ms > self._at_ms:
            self._pass(now_ms)
        share = work_ms / _WINDOW_MS * self._grown
        self._busy[row] += share
        self._total += share

    def _pass(self, now_ms: float) -> None:
        self._at_ms = now_ms
        windows = (now_ms - self._begun_ms) / _WINDOW_MS
        if windows < _MOST_WINDOWS:
            self._grown = math.exp(windows)
            return
        left = math.exp(-windows)
        self._busy *= left
        self._total *= left
        self._begun_ms, self._grown = now_ms, 1.0

    def grow(self, rows: int) -> None:
        self._busy = np.append(self._busy, np.zeros(rows))

    def forget(self, row: int) -> None:
        """The worker of a row is gone."""
        self._busy[row] = 0.0
        self._total = float(self._busy.sum())  # anew, now and then, as small errors add up

    def relative(self, workers: int, times: float = 1.0) -> Floats:
        """How busy each row was beside the average of so many workers, `times` that. The caller may
        write to it. [rows]"""
        found: Floats = self._busy + _LEAST * self._grown
        found *= times / self._average(workers)
        return found

    def relative_of(self, row: int, workers: int) -> float:
        """As `relative`, of one row."""
        return (float(self._busy[row]) + _LEAST * self._grown) / self._average(workers)

    def _average(self, workers: int) -> float:
        return self._total / max(1, workers) + _LEAST * self._grown
