"""Ranges of a region, handed out and taken back."""

from __future__ import annotations

from bisect import bisect_left, insort

ALIGNMENT = 256  # bytes; enough for every dtype and for copies by large words


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class RangeAllocator:
    """`capacity` bytes. The smallest hole that is large enough is taken.

    A range is given back by its taker, once, by its offset.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity // ALIGNMENT * ALIGNMENT
        self._holes: list[tuple[int, int]] = [(0, self.capacity)] if self.capacity else []
        self._taken: dict[int, int] = {}

    @property
    def used(self) -> int:
        return sum(self._taken.values())

    def take(self, size: int) -> int | None:
        """The offset of `size` bytes, None while there is no hole of that size."""
        size = aligned(size)
        fitting = [hole for hole in self._holes if hole[1] >= size]
        if not fitting or size <= 0:
            return None
        offset, length = hole = min(fitting, key=lambda hole: hole[1])
        self._holes.remove(hole)
        if length > size:
            insort(self._holes, (offset + size, length - size))
        self._taken[offset] = size
        return offset

    def give(self, offset: int) -> None:
        """Take a range back and join it with the holes beside it."""
        size = self._taken.pop(offset)
        at = bisect_left(self._holes, (offset, 0))
        if at < len(self._holes) and self._holes[at][0] == offset + size:
            size += self._holes.pop(at)[1]
        if at and sum(self._holes[at - 1]) == offset:
            before = self._holes.pop(at - 1)
            offset, size = before[0], before[1] + size
        insort(self._holes, (offset, size))

    def check_integrity(self) -> list[str]:
        """Whether holes and ranges tile the whole."""
        pieces = sorted([*self._holes, *self._taken.items()])
        end = 0
        for offset, size in pieces:
            if offset != end:
                return [f"EC range at {offset} does not follow the one that ends at {end}"]
            end = offset + size
        return (
            []
            if end == self.capacity
            else [f"EC ranges end at {end}, the capacity is {self.capacity}"]
        )
