"""Who holds what: key → set of slots, as one integer with a bit for each slot.

A slot is a small number of one worker. Sets are Python integers because they are immutable and
shared: all blocks of a conversation that lie on the same workers point to one object, and a block
on one worker points to that worker's own bit. A lookup of n keys costs n dictionary reads and n
ands of a few machine words, however many workers there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

K = TypeVar("K", bound=Hashable)
Run = tuple[int, int]
KEY_TYPE = "Q"  # of block keys: 64 bits
_FEW = 4
_LOG_SLACK = 64


class HolderIndex(Generic[K]):
    """`max_entries` bounds the distinct keys; what does not fit is counted in `refused`."""

    def __init__(self, max_entries: int) -> None:
        self._masks: dict[K, int] = {}
        self.max_entries = max_entries
        self._logs: dict[int, list[K]] = {}
        self._bits: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        self.refused = 0

    def __len__(self) -> int:
        return len(self._masks)

    def count(self, slot: int) -> int:
        """Keys that a slot holds."""
        return self._counts.get(slot, 0)

    def keys(self, slot: int) -> list[K]:
        """What a slot holds, in the order it came."""
        bit = self._bits.get(slot, 0)
        log = self._logs.get(slot, ())
        return list(dict.fromkeys(key for key in log if self._masks.get(key, 0) & bit))

    def holders(self, key: K) -> int:
        """The set of slots that hold `key`, as a bit mask."""
        return self._masks.get(key, 0)

    def add(self, slot: int, keys: Iterable[K]) -> None:
        """`slot` holds `keys`; those it held already change nothing."""
        bit = self._bits.setdefault(slot, 1 << slot)
        log = self._logs.setdefault(slot, [])
        masks, known = self._masks, {0: bit}
        before, room = len(log), self.max_entries - len(self._masks)
        for key in keys:
            old = masks.get(key, 0)
            if old & bit:
                continue
            if not old:
                if room <= 0:
                    self.refused += 1
                    continue
                room -= 1
            new = known.get(old)
            if new is None:
                new = known[old] = old | bit
            masks[key] = new
            log.append(key)
        self._counts[slot] = self.count(slot) + len(log) - before
        self._compact(slot)

    def remove(self, slot: int, keys: Iterable[K]) -> None:
        """`slot` holds `keys` no more; those it did not hold change nothing."""
        bit = self._bits.get(slot, 0)
        masks, known, gone = self._masks, {bit: 0}, 0
        for key in keys:
            old = masks.get(key, 0)
            if not old & bit:
                continue
            gone += 1
            new = known.get(old)
            if new is None:
                new = known[old] = old ^ bit
            if new:
                masks[key] = new
            else:
                del masks[key]
        if gone:
            self._counts[slot] -= gone
            self._compact(slot)

    def drop(self, slot: int) -> None:
        """`slot` holds nothing; costs as much as it held."""
        self.remove(slot, self._logs.pop(slot, ()))
        for table in (self._logs, self._bits, self._counts):
            table.pop(slot, None)

    def _compact(self, slot: int) -> None:
        """Keep the log of what a slot got within twice of what it holds."""
        log = self._logs.get(slot, [])
        if len(log) > 2 * self.count(slot) + _LOG_SLACK:
            self._logs[slot] = self.keys(slot)

    def match(self, keys: Sequence[K]) -> list[Run]:
        """Longest prefixes: [(slots, n)], those slots hold the first n > 0 keys and not the next.

        Slots that do not hold the first key are left out.
        """
        return _runs(map(self._masks.get, keys))

    def match_with(self, others: Sequence[HolderIndex[K]], keys: Sequence[K]) -> list[Run]:
        """As `match`, where a slot may hold a key here or in any of `others`."""
        tables = [self._masks, *(other._masks for other in others)]
        return _runs(reduce(or_, (table.get(key, 0) for table in tables)) or None for key in keys)


def _runs(found: Iterable[int | None]) -> list[Run]:
    """Prefixes by the holders of one key after the other, None for no holder."""
    runs: list[Run] = []
    held, n = -1, 0
    for holders in found:
        if holders is not held:
            if holders is None:
                break
            kept = holders & held
            if kept != held:
                if n:
                    runs.append((held ^ kept, n))
                if not kept:
                    return runs
            held = holders if kept == holders else kept
        n += 1
    if n:
        runs.append((held, n))
    return runs


def slots_of(mask: int) -> list[int]:
    """The slots of a set, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def fill(runs: Iterable[Run], size: int) -> NDArray[np.float64]:
    """Prefix length in keys of every slot below `size`. [max(size, 1)]"""
    lengths = np.zeros(max(size, 1))
    width = (size + 7) // 8
    for mask, n in runs:
        if mask.bit_count() <= _FEW:
            for slot in slots_of(mask):
                lengths[slot] = n
        else:
            packed = np.frombuffer(mask.to_bytes(width, "little"), np.uint8)
            lengths[:size][np.unpackbits(packed, count=size, bitorder="little").view(np.bool_)] = n
    return lengths
