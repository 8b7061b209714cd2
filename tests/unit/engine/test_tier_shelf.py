"""The books of a tier: every slot is in one place, after any calls in any order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.engine.transfers.tier_shelf import TierShelf

CAPACITY = 5
KEYS = st.integers(0, 7).map(lambda n: bytes([n]))


class Shelf(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shelf = TierShelf(CAPACITY, [b"\0", b"\1"])
        self.filling: list[int] = []
        self.pinned: list[list[int]] = []

    @rule(count=st.integers(0, CAPACITY + 1))
    def fill(self, count: int) -> None:
        free = self.shelf.num_free
        slots = self.shelf.fill(count)
        assert len(slots) == min(count, free)
        assert not set(slots) & {*self.filling, *(s for held in self.pinned for s in held)}
        self.filling += slots

    @rule(key=st.none() | KEYS)
    def filled(self, key: bytes | None) -> None:
        if self.filling:
            known = key is None or key in self.shelf
            assert self.shelf.filled(self.filling.pop(), key) is not known
            assert key is None or key in self.shelf

    @rule(keys=st.lists(KEYS, unique=True))
    def pin(self, keys: list[bytes]) -> None:
        self.pinned.append(self.shelf.pin([key for key in keys if key in self.shelf]))

    @rule()
    def unpin(self) -> None:
        if self.pinned:
            self.shelf.unpin(self.pinned.pop())

    @rule(keys=st.lists(KEYS))
    def remove(self, keys: list[bytes]) -> None:
        held = {key for key in keys if key in self.shelf}
        assert set(self.shelf.remove(keys)) == held
        assert not any(key in self.shelf for key in keys)

    @rule(keys=st.lists(KEYS, unique=True, min_size=1))
    def touch(self, keys: list[bytes]) -> None:
        held = [key for key in keys if key in self.shelf]
        self.shelf.touch(keys)
        assert self.shelf.keys()[len(self.shelf) - len(held) :] == held[::-1]

    @invariant()
    def counts(self) -> None:
        busy = bool(self.filling or any(self.pinned))
        problems = self.shelf.check_integrity()
        assert [p for p in problems if "two places" in p] == []
        assert busy == bool(problems)
        assert len(self.shelf) + self.shelf.num_free <= CAPACITY
        assert set(self.shelf.oldest(CAPACITY)) <= set(self.shelf.keys())


TestShelf = Shelf.TestCase
TestShelf.settings = settings(max_examples=60, stateful_step_count=30)
