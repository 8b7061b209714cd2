"""Blocks as byte ranges of two pools."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from connectors.transports.base import Range


def merged(sources: Sequence[int], targets: Sequence[int], size: int) -> list[Range]:
    """Byte ranges of blocks, runs that are contiguous on both sides as one."""
    there, here = np.asarray(sources, np.int64), np.asarray(targets, np.int64)
    starts = np.ones(len(there), np.bool_)
    starts[1:] = (np.diff(there) != 1) | (np.diff(here) != 1)
    first = np.flatnonzero(starts)
    sizes = np.diff(first, append=len(there)) * size
    rows = (there[first] * size).tolist(), (here[first] * size).tolist(), sizes.tolist()
    return list(map(Range, *rows))
