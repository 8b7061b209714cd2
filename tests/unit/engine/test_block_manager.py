"""The block manager against a model of what it should hold, under random operations."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.engine.scheduling.block_manager import BlockManager

BLOCKS = 8


class Model(RuleBasedStateMachine):
    """Owners take, share, name and give back blocks; the books must agree after every step."""

    @initialize()
    def start(self) -> None:
        self.manager = BlockManager(BLOCKS, block_size=4)
        self.owners: list[list[int]] = []
        self.names = 0

    @rule(count=st.integers(1, BLOCKS))
    def allocate(self, count: int) -> None:
        room = self.manager.num_free
        assert self.manager.can_allocate(count) == (count <= room)
        blocks = self.manager.allocate(count)
        if count > room:
            assert blocks is None
            assert self.manager.num_free == room
        else:
            assert blocks is not None
            assert len(set(blocks)) == count
            self.owners.append(blocks)

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        if self.owners:
            blocks = data.draw(st.sampled_from(self.owners))
            self.manager.acquire(blocks)
            self.owners.append(list(blocks))

    @rule(data=st.data())
    def name(self, data: st.DataObject) -> None:
        if self.owners:
            block = data.draw(st.sampled_from(data.draw(st.sampled_from(self.owners))))
            self.manager.store(block, self.names.to_bytes(4, "big"))
            self.names += 1

    @rule(data=st.data())
    def reuse(self, data: st.DataObject) -> None:
        if self.names:
            key = data.draw(st.integers(0, self.names - 1)).to_bytes(4, "big")
            matched = self.manager.match([key])
            self.manager.acquire(matched)
            if matched:
                self.owners.append(matched)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.owners:
            index = data.draw(st.integers(0, len(self.owners) - 1))
            self.manager.release(self.owners.pop(index))

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        if self.names:
            names = data.draw(st.lists(st.integers(0, self.names - 1), max_size=4))
            keys = [name.to_bytes(4, "big") for name in names]
            self.manager.forget(keys)
            assert not any(self.manager.match([key]) for key in keys)

    @rule()
    def reset(self) -> None:
        self.manager.reset_prefix_cache()
        assert not any(self.manager.match([n.to_bytes(4, "big")]) for n in range(self.names))

    @invariant()
    def books_agree(self) -> None:
        assert self.manager.check_integrity(self.owners) == []
        held = {block for blocks in self.owners for block in blocks}
        assert self.manager.num_free == BLOCKS - len(held)


TestBlockManager = Model.TestCase
TestBlockManager.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_integrity_check_finds_a_leak_and_a_double_owner() -> None:
    manager = BlockManager(4, 4)
    blocks = manager.allocate(2)
    assert blocks is not None
    assert len(manager.check_integrity([])) == 2
    assert len(manager.check_integrity([blocks, blocks])) == 2


def test_the_last_block_can_be_had_and_no_more() -> None:
    blocks = BlockManager(3, 4)
    held = blocks.allocate(1)
    assert held is not None and blocks.store(held[0], b"k")
    blocks.release(held)
    assert blocks.can_allocate(3) and not blocks.can_allocate(4)
    assert blocks.can_allocate(2, held) and not blocks.can_allocate(3, held), "matched are taken"
    assert blocks.allocate(4) is None and blocks.num_free == 3
    assert sorted(blocks.allocate(3) or []) == [0, 1, 2] and blocks.num_free == 0
    assert blocks.match([b"k"]) == [] and blocks.usage == 1.0


def test_cached_prefixes_leave_least_recently_used_first() -> None:
    manager = BlockManager(3, 4)
    first = manager.allocate(1) or []
    second = manager.allocate(1) or []
    manager.store(first[0], b"first")
    manager.store(second[0], b"second")
    manager.release(second)
    manager.release(first)
    manager.allocate(2)
    assert manager.match([b"first"]) == first
    assert manager.match([b"second"]) == []


@given(st.integers(1, 100), st.integers(1, 32))
def test_blocks_for_covers_tokens_exactly(tokens: int, size: int) -> None:
    blocks = BlockManager(1, size).blocks_for(tokens)
    assert (blocks - 1) * size < tokens <= blocks * size


def test_the_books_say_which_block_is_wrong_and_how() -> None:
    manager = BlockManager(4, block_size=4)
    (held,) = manager.allocate(1) or []
    (free,) = manager.allocate(1) or []
    manager.release([free])
    assert manager.check_integrity([[held], [free]]) == [
        f"block {free}: 0 references, 1 owners", f"block {free}: free and owned at once"
    ]  # fmt: skip
    assert manager.check_integrity([]) == [f"block {held}: 1 references, 0 owners"]
    assert manager.check_integrity([[held], [held]]) == [f"block {held}: 1 references, 2 owners"]
    assert manager.check_integrity([[held]]) == []


def test_the_version_grows_with_what_is_known_and_what_is_forgotten() -> None:
    manager = BlockManager(2, block_size=4)
    (block,) = manager.allocate(1) or []
    seen = [manager.version]
    assert manager.store(block, b"a") and not manager.store(block, b"b")
    seen.append(manager.version)
    manager.release([block])
    manager.reset_prefix_cache()
    seen.append(manager.version)
    assert seen == sorted(set(seen)) and manager.known() == []
