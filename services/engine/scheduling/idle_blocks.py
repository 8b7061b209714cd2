"""Blocks that hold a known prefix and that no request uses: what may be copied to a lower tier."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class IdleBlocks:
    """Told by the `BlockManager` what becomes idle and what is evicted.

    A copy reads a block without owning it, so that no request waits for it. What was evicted in the
    meantime may have been overwritten while it was read: such a copy does not count. There are
    never more entries than the pool has blocks.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, bytes] = OrderedDict()
        self._copying: dict[int, object] = {}
        self.dropped = 0  # blocks that were evicted before they had been copied

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, block: int, key: bytes) -> None:
        """No request uses `block` any more, which holds what `key` names."""
        # One that is being copied was in use again meanwhile, and still holds the same.
        if block not in self._copying:
            self._waiting[block] = key
            self._waiting.move_to_end(block)

    def evicted(self, block: int) -> None:
        """`block` is about to hold something else."""
        if self._waiting.pop(block, None) is None and self._copying.pop(block, None) is None:
            return
        self.dropped += 1

    def take(self, count: int, batch: object, known: Callable[[bytes], bool]) -> dict[int, bytes]:
        """Up to `count` blocks with their keys, those that have waited longest, which `batch` is
        going to copy; those whose key is `known` below are left out."""
        taken: dict[int, bytes] = {}
        while self._waiting and len(taken) < count:
            # The pool evicts what has been idle longest, so that is in the most danger.
            block, key = self._waiting.popitem(last=False)
            if not known(key):
                taken[block] = key
                self._copying[block] = batch
        return taken

    def copied(self, block: int, batch: object) -> bool:
        """`batch` has read `block`; False if it was evicted since it began to."""
        if self._copying.get(block) is not batch:
            return False
        del self._copying[block]
        return True

    def clear(self) -> None:
        """Nothing holds a known prefix any more."""
        self._waiting.clear()
        self._copying.clear()
