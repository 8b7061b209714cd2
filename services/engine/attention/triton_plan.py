"""How the Triton attention kernels cut their work: tiles of programs, splits of contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIN_TILE = 16
PROGRAMS_PER_PROCESSOR = 2  # of decode; on an H100 2 and 4 are as fast, and 3 leave a last round


@dataclass(frozen=True)
class Tile:
    """Rows and keys of one program, and what it is compiled for."""

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Splits:
    """How decode cuts contexts: at most `count` a request, each a multiple of `keys` long."""

    count: int
    keys: int


@dataclass(frozen=True)
class SplitPlan:
    """Splits contexts for decode.

    programs: what keeps the device busy
    min_split: keys below which a split is not worth its merge
    max_splits: what one merge program can hold
    """

    programs: int
    min_split: int = 64
    max_splits: int = 64

    def eager(self, visible: Sequence[int], kv_heads: int) -> Splits:
        """Splits for requests that see `visible` keys each.

        Of one length for all requests, not of one number: a long context beside short ones must
        not be the work of few programs.
        """
        longest = max(visible)
        share = max(ceil(sum(visible) * kv_heads, self.programs), ceil(longest, self.max_splits))
        count = ceil(longest, ceil(share, self.min_split) * self.min_split)
        return Splits(count, ceil(ceil(longest, count), self.min_split) * self.min_split)

    def captured(self, visible: Sequence[int], kv_heads: int) -> Splits:
        """Splits for a captured graph, where `visible` are bounds.

        Each context is cut in `count` parts as it comes, down to the shortest worth a merge.
        """
        count = ceil(self.programs, len(visible) * kv_heads)
        useful = ceil(max(visible), self.min_split)
        return Splits(min(count, useful, self.max_splits), self.min_split)


def prefill_tile(itemsize: int, dim: int, group: int) -> Tile:
    """The largest tile that keeps its registers on sm_80 and sm_90 and fits the shared memory of
    small devices (99 KB). `itemsize` in bytes, `dim` the larger of a key's and a value's."""
    dim = pad(dim)
    if itemsize == 4:
        return Tile(max(pad(group), min(32, 4096 // dim)), 16, warps=8, stages=2)
    rows = max(pad(group), min(128, 16384 // dim))
    return Tile(rows, max(MIN_TILE, min(64, 8192 // dim)), warps=8, stages=3)


def decode_tile(itemsize: int, dim: int, group: int) -> Tile:
    """Few rows, and loads kept in flight: of five stages the block numbers take two. Of seven tiles
    tried on an H100, at five batches and contexts, the fastest or within 5 % of it."""
    if itemsize == 4:
        return Tile(pad(group), 16, warps=4, stages=2)
    return Tile(pad(group), max(MIN_TILE, min(32, 4096 // pad(dim))), warps=4, stages=5)


def pad(size: int) -> int:
    """The size of a tile's side that holds `size`: a power of two, at least `MIN_TILE`."""
    return max(MIN_TILE, 1 << (size - 1).bit_length())


def ceil(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
