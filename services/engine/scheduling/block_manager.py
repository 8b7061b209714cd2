"""Who owns which block of the KV cache, and which blocks hold a known prefix.

A block is free (no owner; it may still hold a cached prefix and is then reusable under its key)
or owned by one or more holders. Blocks that hold nothing are taken first, then cached prefixes in
least-recently-used order. Books are kept of blocks that have been used only: a pool that is hardly
touched costs hardly any memory, so that one process can have hundreds.
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
        self._refs: dict[int, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._blank: list[int] = []
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._unused = 0

    @property
    def num_free(self) -> int:
        return self.num_blocks - len(self._refs)

    @property
    def usage(self) -> float:
        """Share of blocks that are owned, 0 to 1."""
        return len(self._refs) / self.num_blocks

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
            self._refs[block] = self._refs.get(block, 0) + 1
            self._cached.pop(block, None)

    def can_allocate(self, count: int, matched: Sequence[int] = ()) -> bool:
        """Whether `count` new blocks are left once the `matched` ones are acquired."""
        reused = sum(1 for block in matched if block not in self._refs)
        return self.num_free - reused >= count

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks owned once, or None (and nothing taken) if there are not as many."""
        if count > self.num_free:
            return None
        blocks = [self._take() for _ in range(count)]
        self._refs.update(dict.fromkeys(blocks, 1))
        return blocks

    def _take(self) -> int:
        if self._blank:
            return self._blank.pop()
        if self._unused < self.num_blocks:
            self._unused += 1
            return self._unused - 1
        block = self._cached.popitem(last=False)[0]
        self._forget(block)
        return block

    def store(self, block: int, key: bytes) -> bool:
        """Declare that an owned block holds, complete, the tokens that `key` names.

        False if another block holds the same already: that one stays the known one.
        """
        if not self._caching or block in self._key_of or key in self._block_of:
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
            left = self._refs.get(block, 0) - 1
            assert left >= 0, f"block {block} released more often than acquired"
            if left:
                self._refs[block] = left
                continue
            del self._refs[block]
            if block in self._key_of:
                self._cached[block] = None
            else:
                self._blank.append(block)

    def reset_prefix_cache(self) -> None:
        """Forget every prefix; owned blocks stay owned."""
        for block in list(self._block_of.values()):
            self._forget(block)
        self._blank += reversed(self._cached)
        self._cached.clear()

    def _forget(self, block: int) -> None:
        key = self._key_of.pop(block)
        del self._block_of[key]
        self.version += 1
        self.forgotten(key)

    def check_integrity(self, owners: Iterable[Sequence[int]]) -> list[str]:
        """Compare the books with what `owners` say they hold; [] if they agree."""
        held = Counter(block for blocks in owners for block in blocks)
        problems = [
            f"block {block}: {self._refs.get(block, 0)} references, {held[block]} owners"
            for block in sorted(self._refs.keys() | held.keys())
            if self._refs.get(block, 0) != held[block]
        ]
        free = [*self._blank, *self._cached]
        problems += [f"block {block}: free and owned at once" for block in free if block in held]
        if len(set(free)) != len(free) or len(free) + len(self._refs) != self._unused:
            problems.append("a block is neither free nor owned")
        problems += [
            f"key of block {block} is not its own"
            for key, block in self._block_of.items()
            if self._key_of.get(block) != key
        ]
        return problems
