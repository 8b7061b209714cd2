"""Ranges of a store's memory."""

import random

from hypothesis import given
from hypothesis import strategies as st

from connectors.ec.range_allocator import ALIGNMENT, RangeAllocator


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5000)), max_size=60), st.integers(0, 99))
def test_space_never_overlaps_and_comes_back_whole(
    steps: list[tuple[bool, int]], seed: int
) -> None:
    chance, space = random.Random(seed), RangeAllocator(16 * 1024)
    taken: dict[int, int] = {}
    for take, size in steps:
        if take:
            offset = space.take(size)
            if offset is not None:
                ends = [(o, o + s) for o, s in taken.items()]
                assert offset % ALIGNMENT == 0
                assert all(offset + size <= start or end <= offset for start, end in ends)
                taken[offset] = size
        elif taken:
            offset = chance.choice(sorted(taken))
            del taken[offset]
            space.give(offset)
        assert space.check_integrity() == []
    for offset in taken:
        space.give(offset)
    assert space.take(16 * 1024) == 0
