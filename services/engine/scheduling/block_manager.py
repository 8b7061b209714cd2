"""Who owns which block of the KV cache, and which blocks hold a known prefix.

A block is free (no owner; it may still hold a cached prefix and is then reusable under its key)
or owned by one or more holders. Free blocks are taken oldest first, so cached prefixes leave in
least-recently-used order.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence


class BlockManager:
    """Reference counts and prefix cache over blocks 0 … num_blocks − 1.

    `forgotten` is told each key that is known no more. `version` counts what has become known and
    what was forgotten.
    """

    forgotten: Callable[[bytes], None] = staticmethod(lambda key: None)

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.version = 0
        self._caching = prefix_caching
        self._refs = [0] * num_blocks
        self._key_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of blocks that are owned, 0 to 1."""
        return 1.0 - len(self._free) / self.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, keys: Sequence[bytes]) -> list[int]:
        """Blocks that hold the longest cached prefix of `keys`. Nothing is acquired."""
        blocks = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def acquire(self, blocks: Iterable[int]) -> None:
        """Become one more owner of blocks that hold something."""
        for block in blocks:
            self._refs[block] += 1
            self._free.pop(block, None)

    def can_allocate(self, count: int, matched: Sequence[int] = ()) -> bool:
        """Whether `count` new blocks are left once the `matched` ones are acquired."""
        reused = sum(1 for block in matched if self._refs[block] == 0)
        return len(self._free) - reused >= count

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks owned once, or None (and nothing taken) if there are not as many."""
        if count > len(self._free):
            return None
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._forget(block)
            self._refs[block] = 1
        return blocks

    def store(self, block: int, key: bytes) -> bool:
        """Declare that an owned block holds, complete, the tokens that `key` names.

        False if another block holds the same already: that one stays the known one.
        """
        if not self._caching or self._key_of[block] is not None or key in self._block_of:
            return False
        self._key_of[block] = key
        self._block_of[key] = block
        self.version += 1
        return True

    def known(self) -> list[bytes]:
        """All keys that can be matched, in no particular order."""
        return list(self._block_of)

    def release(self, blocks: Sequence[int]) -> None:
        """Stop owning `blocks`, given first to last; the last are reused first."""
        for block in reversed(blocks):
            self._refs[block] -= 1
            assert self._refs[block] >= 0, f"block {block} released more often than acquired"
            if self._refs[block] == 0:
                self._free[block] = None
                if self._key_of[block] is None:
                    self._free.move_to_end(block, last=False)

    def reset_prefix_cache(self) -> None:
        """Forget every prefix; owned blocks stay owned."""
        for block in list(self._block_of.values()):
            self._forget(block)

    def _forget(self, block: int) -> None:
        key = self._key_of[block]
        if key is not None:
            del self._block_of[key]
            self._key_of[block] = None
            self.version += 1
            self.forgotten(key)

    def check_integrity(self, owners: Iterable[Sequence[int]]) -> list[str]:
        """Compare the books with what `owners` say they hold; [] if they agree."""
        held = Counter(block for blocks in owners for block in blocks)
        problems = [
            f"block {block}: {self._refs[block]} references, {held[block]} owners"
            for block in range(self.num_blocks)
            if self._refs[block] != held[block]
        ]
        problems += [
            f"block {block}: free and owned at once" for block in self._free if self._refs[block]
        ]
        if len(self._free) + sum(1 for refs in self._refs if refs) != self.num_blocks:
            problems.append("a block is neither free nor owned")
        problems += [
            f"key of block {block} is not its own"
            for key, block in self._block_of.items()
            if self._key_of[block] != key
        ]
        return problems
