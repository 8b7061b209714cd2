"""Who owns which block of the KV cache, and which blocks hold a known prefix.

A block is free (no owner; it may still hold a cached prefix and is then reusable under its key)
or owned by one or more holders. Blocks that hold nothing are taken first, then cached prefixes in
least-recently-used order. Books are kept of blocks that have been used only: a pool that is hardly
touched costs hardly any memory, so that one process can have hundreds.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from services.engine.scheduling.idle_blocks import IdleBlocks
from services.membership.events import CacheLog


class BlockManager:
    """Reference counts and prefix cache over blocks 0 … num_blocks − 1.

    `log` is told each key that is known no more, `idle` each block that holds a known prefix and
    has no owner. `version` counts what has become known and what was forgotten.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool = True,
        log: CacheLog | None = None,
        idle: IdleBlocks | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.version = 0
        self._caching = prefix_caching
        self._log = log
        self._idle = idle
        self._refs: dict[int, int] = {}
        self._key_of: dict[int, bytes] = {}  # of owned blocks
        self._block_of: dict[bytes, int] = {}
        self._blank: list[int] = []
        self._cached: OrderedDict[int, bytes] = OrderedDict()  # free blocks with their keys
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

    def is_idle(self, block: int) -> bool:
        """Whether it holds a known prefix and has no owner."""
        return block in self._cached

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
            owners = self._refs.get(block, 0)
            self._refs[block] = owners + 1
            if not owners:
                self._key_of[block] = self._cached.pop(block)

    def can_allocate(self, count: int, matched: Sequence[int] = ()) -> bool:
        """Whether `count` new blocks are left once the `matched` ones are acquired."""
        reused = sum(map(self.is_idle, matched))
        return self.num_free - reused >= count

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks owned once, or None (and nothing taken) if there are not as many."""
        if count > self.num_free:
            return None
        blocks = [self._blank.pop() for _ in range(min(count, len(self._blank)))]
        unused = min(count - len(blocks), self.num_blocks - self._unused)
        blocks += range(self._unused, self._unused + unused)
        self._unused += unused
        for _ in range(count - len(blocks)):
            block, key = self._cached.popitem(last=False)
            self._forget(key)
            if self._idle is not None:
                self._idle.evicted(block)
            blocks.append(block)
        self._refs.update(dict.fromkeys(blocks, 1))
        return blocks

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
        # Without its head a prefix is not found, so its tail is the first to go.
        for block in reversed(blocks):
            left = self._refs.get(block, 0) - 1
            assert left >= 0, f"block {block} released more often than acquired"
            if left:
                self._refs[block] = left
                continue
            del self._refs[block]
            key = self._key_of.pop(block, None)
            if key is None:
                self._blank.append(block)
                continue
            self._cached[block] = key
            if self._idle is not None:
                self._idle.add(block, key)

    def forget(self, keys: Iterable[bytes]) -> None:
        """What these name is not used again; owned blocks stay owned."""
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                continue
            self._forget(key)
            if self._key_of.pop(block, None) is None:
                del self._cached[block]
                self._blank.append(block)
            # Also of one in use: it may have been idle when its copy to a tier began.
            if self._idle is not None:
                self._idle.evicted(block)

    def reset_prefix_cache(self) -> None:
        """Forget every prefix; owned blocks stay owned."""
        for key in list(self._block_of):
            self._forget(key)
        self._blank += reversed(self._cached)
        self._cached.clear()
        # Blocks in use lose their keys, too: once released they hold nothing that is known.
        self._key_of.clear()
        if self._idle is not None:
            self._idle.clear()

    def _forget(self, key: bytes) -> None:
        del self._block_of[key]
        self.version += 1
        if self._log is not None:
            self._log.block_removed(key)

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
        keys = {**self._key_of, **self._cached}
        if {block: key for key, block in self._block_of.items()} != keys:
            problems.append("a block's key is not its own")
        return problems
