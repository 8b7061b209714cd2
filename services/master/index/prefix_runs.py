"""Prefixes that slots hold of one prompt, as runs: (slots, how many keys)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from services.master.index.holder_sets import mask_of, slots_of

K = TypeVar("K", bound=Hashable)
Run = tuple[int, int]
_FEW = 4  # slots: more are set all at once, from the bits of their mask


def walk(
    walking: int, tables: Sequence[dict[K, int]], keys: Sequence[K], begin: int
) -> tuple[list[Run], int]:
    """(those of the slots `walking` that lack one of these keys in all tables, the others), where
    `begin` keys come before."""
    ended: list[Run] = []
    last: tuple[int | None, ...] = ()
    for n, codes in enumerate(zip(*(map(table.get, keys) for table in tables), strict=True), begin):
        if codes == last:
            continue
        last = codes
        kept = walking & reduce(or_, (mask_of(code) for code in codes if code), 0)
        if kept != walking:
            if n:
                ended.append((walking ^ kept, n))
            walking = kept
            if not kept:
                break
    return ended, walking


def runs_of(found: Iterable[int | None]) -> list[Run]:
    """Prefixes by the holders of one key after the other, None for no holder."""
    runs: list[Run] = []
    held, n = -1, 0
    last: int | None = 0
    for code in found:
        # Blocks that came together share their set as one object: identity settles most of them.
        if code is not last:
            if code is None:
                break
            if code != last:
                kept = mask_of(code) & held
                if kept != held:
                    if n:
                        runs.append((held ^ kept, n))
                    if not kept:
                        return runs
                    held = kept
            last = code
        n += 1
    if n:
        runs.append((held, n))
    return runs


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
