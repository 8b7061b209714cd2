"""The books of one tier below the pool: which blocks it holds, in which slots, which go next."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container, Sequence


class TierShelf:
    """Slots 0 … capacity − 1, each free, being filled, or holding the block that a key names. A
    slot that is pinned, since something reads it, is not used again before it is unpinned."""

    def __init__(self, capacity: int, kept: Sequence[bytes] = ()) -> None:
        """`kept` lie in slots 0, 1, …, the least recently used first."""
        self.capacity = capacity
        self._slots: OrderedDict[bytes, int] = OrderedDict(
            (key, slot) for slot, key in enumerate(kept)
        )
        self._unused = len(self._slots)
        self._free: list[int] = []
        self._filling: set[int] = set()
        self._pins: Counter[int] = Counter()
        self._removed: set[int] = set()  # pinned slots whose keys are gone

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: bytes) -> bool:
        return key in self._slots

    @property
    def num_free(self) -> int:
        return self.capacity - self._unused + len(self._free)

    def keys(self) -> list[bytes]:
        return list(self._slots)

    def fill(self, count: int) -> list[int]:
        """Up to `count` free slots, which are being filled from here on."""
        taken = [self._free.pop() for _ in range(min(count, len(self._free)))]
        unused = min(count - len(taken), self.capacity - self._unused)
        taken += range(self._unused, self._unused + unused)
        self._unused += unused
        self._filling.update(taken)
        return taken

    def filled(self, slot: int, key: bytes | None) -> bool:
        """A slot holds what `key` names, or nothing (None). False if it is free again, as another
        one holds the same."""
        self._filling.discard(slot)
        if key is None or key in self._slots:
            self._free.append(slot)
            return False
        self._slots[key] = slot
        return True

    def touch(self, keys: Sequence[bytes]) -> None:
        """A prompt's blocks are used, first to last: the last of them go first."""
        for key in reversed(keys):
            if key in self._slots:
                self._slots.move_to_end(key)

    def oldest(self, count: int, kept: Container[bytes] = ()) -> list[bytes]:
        """Up to `count` keys, not among the `kept` ones, whose slots are not pinned, those that go
        next first."""
        found: list[bytes] = []
        for key, slot in self._slots.items():
            if len(found) >= count:
                break
            if not self._pins[slot] and key not in kept:
                found.append(key)
        return found

    def pin(self, keys: Sequence[bytes]) -> list[int]:
        """The slots of keys that are held; something reads them until `unpin`."""
        slots = [self._slots[key] for key in keys]
        self._pins.update(slots)
        return slots

    def unpin(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._pins[slot] -= 1
            if not self._pins[slot]:
                del self._pins[slot]
                if slot in self._removed:
                    self._removed.discard(slot)
                    self._free.append(slot)

    def remove(self, keys: Sequence[bytes]) -> list[bytes]:
        """Forget keys; those of them that were held."""
        gone = [key for key in dict.fromkeys(keys) if key in self._slots]
        for key in gone:
            slot = self._slots.pop(key)
            if self._pins[slot]:
                self._removed.add(slot)
            else:
                self._free.append(slot)
        return gone

    def check_integrity(self) -> list[str]:
        """[] if each slot is in one place and nothing is pinned or being filled."""
        problems = []
        slots = [*self._slots.values(), *self._free, *self._filling, *self._removed]
        if sorted(slots) != list(range(self._unused)):
            problems.append("a slot is in two places or in none")
        if self._filling or +self._pins:
            problems.append(f"{len(self._filling)} slots are being filled, {len(self._pins)} read")
        return problems
