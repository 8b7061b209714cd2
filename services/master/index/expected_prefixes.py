"""Prefixes that a worker is about to hold: prompts placed there whose prefill is not over.

Without this, requests that share a prefix and come together would scatter before the first event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.master.index.prefix_runs import Run


@dataclass(eq=False, slots=True)
class ExpectedPrefix:
    """A prompt being prefilled at `slot`, which held its first `start` blocks when placed."""

    slot: int
    start: int
    keys: Sequence[int]


class ExpectedPrefixes:
    """Found by the key of the first block that its worker lacks; the newest per worker counts."""

    def __init__(self) -> None:
        self._by_key: dict[int, dict[int, ExpectedPrefix]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, slot: int, start: int, keys: Sequence[int]) -> ExpectedPrefix | None:
        """The prompt with these block keys is placed at `slot`; None if that holds all of it."""
        if start >= len(keys):
            return None
        expected = ExpectedPrefix(slot, start, keys)
        self._by_key.setdefault(keys[start], {})[slot] = expected
        return expected

    def remove(self, expected: ExpectedPrefix) -> None:
        key = expected.keys[expected.start]
        slots = self._by_key.get(key, {})
        # A newer prompt that begins with the same block may have taken its place.
        if slots.get(expected.slot) is expected:
            del slots[expected.slot]
            if not slots:
                del self._by_key[key]

    def drop(self, slot: int) -> None:
        """The worker at `slot` is gone; costs as much as there is of all workers."""
        for expected in [s[slot] for s in self._by_key.values() if slot in s]:
            self.remove(expected)

    def extend(
        self, lengths: NDArray[np.float64], runs: Sequence[Run], keys: Sequence[int]
    ) -> None:
        """Raise `lengths` (blocks held by each slot, [slots]) to what will be held soon."""
        if not self._by_key:
            return
        starts, seen = [0, *(n for _, n in runs)], set()
        while starts:
            start = starts.pop()
            if start >= len(keys) or start in seen:
                continue
            seen.add(start)
            for slot, found in self._by_key.get(keys[start], {}).items():
                # Not of a worker that has lost what comes before: it has no prefix then.
                if found.start == start <= lengths[slot]:
                    length = _common(found.keys, keys, start)
                    lengths[slot] = max(lengths[slot], length)
                    # From where this prompt parts from ours another one may go on.
                    starts.append(length)


def _common(first: Sequence[int], second: Sequence[int], start: int) -> int:
    """Length of the common prefix, which is at least `start`."""
    size = min(len(first), len(second))
    low, high = start, size  # chained keys: once they differ, they differ to the end
    while low < high:
        middle = (low + high + 1) // 2
        if first[middle - 1] == second[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
