"""KV blocks counted, not stored: owners, known prefixes by block key, LRU among the unowned.

Memory is proportional to the blocks that have a key, not to the size of the pool, so that one
process can hold thousands of pools.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class Holding:
    """What one owner has: blocks with a key, first to last, and a number of blocks without."""

    keys: list[bytes] = field(default_factory=list)
    unnamed: int = 0

    @property
    def blocks(self) -> int:
        return len(self.keys) + self.unnamed


class KVBlocks:
    """`removed` collects the keys that eviction has taken, until the caller clears it. `version`
    counts what has become known and what was forgotten."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.removed: list[bytes] = []
        self.version = 0
        self._owners: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        self._forgotten: set[bytes] = set()
        self._unnamed = 0

    @property
    def num_free(self) -> int:
        """Blocks without an owner, known prefixes among them."""
        return self.num_blocks - len(self._owners) - self._unnamed

    @property
    def usage(self) -> float:
        """Share of blocks that are owned, 0 to 1."""
        return 1.0 - self.num_free / self.num_blocks

    @property
    def num_known(self) -> int:
        return len(self._owners) + len(self._idle)

    def known(self) -> Iterable[bytes]:
        """All keys that can be matched, in no particular order."""
        yield from (key for key in self._owners if key not in self._forgotten)
        yield from self._idle

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, keys: Sequence[bytes]) -> int:
        """Length of the longest known prefix of `keys`, in blocks. Nothing is acquired."""
        for count, key in enumerate(keys):
            if key not in self._idle and (key not in self._owners or key in self._forgotten):
                return count
        return len(keys)

    def can_take(self, keys: Sequence[bytes], count: int) -> bool:
        """Whether `count` blocks are left once the known `keys` are acquired."""
        idle = sum(1 for key in keys if key in self._idle)
        return self.num_free - idle >= count

    def take(self, keys: Sequence[bytes], count: int) -> Holding:
        """Own the blocks of known `keys` and `count` others; `can_take` must have agreed."""
        for key in keys:
            self._idle.pop(key, None)
            self._owners[key] = self._owners.get(key, 0) + 1
        holding = Holding(list(keys))
        self.grow(holding, count)
        return holding

    def grow(self, holding: Holding, count: int) -> bool:
        """`count` more blocks for an owner; False, and nothing taken, if there are not as many."""
        if count > self.num_free:
            return False
        self._unnamed += count
        holding.unnamed += count
        spare = self.num_blocks - self.num_known - self._unnamed
        for _ in range(-spare):
            self.removed.append(self._idle.popitem(last=False)[0])
            self.version += 1
        return True

    def name(self, holding: Holding, key: bytes) -> bool:
        """An owned block is complete and holds what `key` names; False if that was known before.

        Of two blocks with the same content the later one stays without a key.
        """
        if not self.prefix_caching or key in self._idle:
            return False
        if key in self._owners:
            if key not in self._forgotten:
                return False
            self._forgotten.discard(key)
            self.version += 1
            return True
        holding.unnamed -= 1
        holding.keys.append(key)
        self._unnamed -= 1
        self._owners[key] = 1
        self.version += 1
        return True

    def release(self, holding: Holding) -> None:
        """Stop owning everything; of a prefix the last block is reused first."""
        for key in reversed(holding.keys):
            self._owners[key] -= 1
            if not self._owners[key]:
                del self._owners[key]
                if key in self._forgotten:
                    self._forgotten.discard(key)
                else:
                    self._idle[key] = None
        self._unnamed -= holding.unnamed
        holding.keys, holding.unnamed = [], 0

    def split(self, holding: Holding, blocks: int) -> Holding:
        """Hand over the first `blocks` blocks of an owner to a new one."""
        keys, holding.keys = holding.keys[:blocks], holding.keys[blocks:]
        unnamed = min(holding.unnamed, blocks - len(keys))
        holding.unnamed -= unnamed
        return Holding(keys, unnamed)

    def reset(self) -> None:
        """Forget every prefix; owned blocks stay owned."""
        self.version += sum(1 for _ in self.known())
        self._idle.clear()
        self._forgotten.update(self._owners)

    def check_integrity(self, owners: Iterable[Holding]) -> list[str]:
        """Compare the books with what `owners` say they hold; [] if they agree."""
        holdings = list(owners)
        held = Counter(key for holding in holdings for key in holding.keys)
        problems = [
            f"block {key.hex()[:16]}: {self._owners.get(key, 0)} references, {held[key]} owners"
            for key in self._owners.keys() | held.keys()
            if self._owners.get(key, 0) != held[key]
        ]
        unnamed = sum(holding.unnamed for holding in holdings)
        if unnamed != self._unnamed:
            problems.append(f"{self._unnamed} blocks without a key are owned, {unnamed} are held")
        if self.num_known + self._unnamed > self.num_blocks or self._unnamed < 0:
            problems.append("there are more blocks than the pool has")
        return problems
