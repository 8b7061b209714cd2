"""The producer's store of embeddings: room, pins, leases, wants; and its allocator."""

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from connectors.base import Entry
from connectors.ec.range_allocator import ALIGNMENT, Space
from connectors.ec.store import ECStore
from connectors.messages import ECDone, ECForget, ECGrant, ECHeld, ECLost, ECWant
from protocol.errors import TransferError

ROWS, HIDDEN = 4, 64
SIZE = ROWS * HIDDEN * 4


class Bus:
    """Stands where the side channel's server does: hands over messages, keeps answers."""

    def __init__(self) -> None:
        self.handlers: dict[type, Any] = {}
        self.answers: list[Any] = []

    def on(self, kind: type, handler: Any) -> None:
        self.handlers[kind] = handler

    def say(self, message: Any) -> Any:
        """Deliver; the last answer."""
        self.handlers[type(message)](message, self.answers.append)
        return self.answers[-1] if self.answers else None


class Case:
    """A store for `count` entries on a clock of its own."""

    def __init__(self, count: int, lease_s: float = 30.0) -> None:
        self.now = 100.0
        self.bus = Bus()
        self.memory = torch.zeros(count * SIZE, dtype=torch.uint8)
        self.pending: set[str] = set()
        self.store = ECStore(
            self.bus,  # type: ignore[arg-type]
            self.memory,
            lambda offset, size: None,
            lease_s,
            lambda: self.now,
        )

    def offer(self, name: str, *holders: str) -> bool:
        return self.store.offer(name, Entry(tensors(name), holders))

    def want(self, name: str, query: int = 1) -> ECGrant:
        answer = self.bus.say(ECWant(query, name, 60.0))
        assert isinstance(answer, ECGrant)
        return answer

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.store.poll(self.pending)

    def sound(self) -> None:
        assert self.store.check_integrity() == []


def tensors(name: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(hash(name) % 1000)
    return {"ec_cache": torch.randn(ROWS, HIDDEN, generator=generator)}


def test_what_nobody_needs_makes_room_least_recently_used_first() -> None:
    case = Case(2)
    assert case.offer("a") and case.offer("b")
    assert case.store.keep("a", "r") is not None
    case.bus.say(ECForget("a", "r"))
    assert case.offer("c")
    assert case.store.tensors("b") is None
    assert case.store.tensors("a") is not None
    assert case.store.evictions == 1
    case.sound()


def test_what_is_kept_for_a_request_stays_until_it_is_done() -> None:
    case = Case(1)
    assert case.offer("a", "r1", "r2")
    assert not case.offer("b")
    case.bus.say(ECForget("a", "r1"))
    assert not case.offer("b")
    case.bus.say(ECForget("a", "r2"))
    assert case.offer("b")
    case.sound()


def test_a_request_that_was_done_first_pins_nothing() -> None:
    case = Case(1)
    case.bus.say(ECForget("a", "r"))
    assert case.offer("a", "r")
    assert case.offer("b", "s")
    assert not case.offer("a", "r"), "it was done once, not for ever"
    case.sound()


def test_an_unnamed_holder_is_ended_by_whoever_comes() -> None:
    case = Case(1)
    assert case.offer("a", "")
    assert not case.offer("b")
    case.bus.say(ECForget("a", "somebody"))
    assert case.offer("b")


def test_a_lease_that_nobody_ends_lapses_and_is_counted() -> None:
    case = Case(1, lease_s=5.0)
    assert case.offer("a", "r")
    case.after(4.9)
    assert not case.offer("b")
    case.after(0.2)
    assert case.store.lapsed == 1
    assert case.offer("b")
    case.sound()


def test_a_grant_pins_until_done_and_says_whether_it_held() -> None:
    case = Case(1)
    case.offer("a")
    grant = case.want("a")
    assert not case.offer("b")
    assert case.bus.say(ECDone(1, "a", grant.grant)) == ECHeld(1, True)
    assert case.bus.say(ECDone(1, "a", grant.grant)) == ECHeld(1, False)
    assert case.offer("b")
    case.sound()


def test_a_lapsed_grant_is_noticed_by_its_reader() -> None:
    """The race: the reader is slow, the lease lapses, the memory is used for something else."""
    case = Case(1, lease_s=5.0)
    case.offer("a")
    grant = case.want("a")
    case.after(5.1)
    assert case.store.grants.expired == 1
    assert case.offer("b")
    assert case.bus.say(ECDone(1, "a", grant.grant)) == ECHeld(1, False)
    case.sound()


def test_memory_of_a_dropped_entry_waits_for_its_readers() -> None:
    case = Case(1)
    case.offer("a")
    grant = case.want("a")
    case.store.clear()
    assert case.store.tensors("a") is None
    assert not case.offer("b")
    case.sound()
    case.bus.say(ECDone(1, "a", grant.grant))
    assert case.offer("b")
    case.sound()


def test_a_wanted_entry_takes_the_place_of_what_waits_and_hands_it_back() -> None:
    case = Case(1)
    case.offer("a", "r1")
    case.bus.say(ECWant(7, "b", 60.0))
    assert case.store.wanted("b")
    left: dict[str, Entry] = {}
    assert case.store.swap("b", Entry(tensors("b"), ("r2",)), left)
    assert torch.equal(left["a"].tensors["ec_cache"], tensors("a")["ec_cache"])
    assert left["a"].holders == ("r1",)
    assert case.bus.answers[-1].query == 7
    assert not case.store.swap("c", Entry(tensors("c"), ()), left), "b is being read"
    assert set(left) == {"a"}
    case.sound()


def test_what_was_pushed_out_in_vain_is_handed_back_too() -> None:
    """Room for two: one is read, so an entry of twice the size does not fit after all."""
    case = Case(2)
    case.offer("a", "r1")
    case.offer("b")
    case.want("b")
    large = {"ec_cache": torch.zeros(2 * ROWS, HIDDEN)}
    left: dict[str, Entry] = {}
    assert not case.store.swap("c", Entry(large, ()), left)
    assert torch.equal(left["a"].tensors["ec_cache"], tensors("a")["ec_cache"])
    assert left["a"].holders == ("r1",)
    case.sound()


def test_a_push_out_does_not_start_leases_anew() -> None:
    """In a store that thrashes, a request that never comes would pin its entry for ever."""
    case = Case(1, lease_s=10.0)
    case.offer("a", "r1", "")
    for _ in range(3):
        case.after(3.0)
        left: dict[str, Entry] = {}
        case.bus.say(ECWant(7, "b", 60.0))
        assert case.store.swap("b", Entry(tensors("b"), ()), left)
        case.bus.say(ECDone(7, "b", case.bus.answers[-1].grant))
        assert len(left["a"].holders) == 2 and left["a"].held(case.now)
        assert set(left["a"].deadlines.values()) == {110.0}
        assert case.store.offer("a", left["a"])
    case.after(1.5)
    assert case.store.lapsed == 2
    assert case.offer("c"), "nobody needs a"
    case.sound()


def test_what_lapsed_outside_the_store_is_not_kept_when_it_comes_back() -> None:
    case = Case(1, lease_s=10.0)
    entry = Entry(tensors("a"), ("r1", "r2"), {"r1": case.now - 1.0, "r2": case.now + 5.0})
    assert entry.held(case.now) and not entry.held(case.now + 5.0)
    assert case.store.offer("a", entry)
    assert case.store.lapsed == 1
    assert not case.offer("b")
    case.bus.say(ECForget("a", "r2"))
    assert case.offer("b")


def test_a_request_that_comes_anew_has_a_whole_lease() -> None:
    case = Case(1, lease_s=10.0)
    case.store.offer("a", Entry(tensors("a"), ("r",), {"r": case.now + 1.0}))
    case.store.keep("a", "r")
    case.after(5.0)
    assert not case.offer("b")


def test_the_bytes_are_where_the_grant_says() -> None:
    case = Case(3)
    for name in ("a", "b", "c"):
        case.offer(name)
    (tensor,) = case.want("b").tensors
    found = case.memory[tensor.offset : tensor.offset + tensor.nbytes].view(torch.float32)
    assert torch.equal(found.view(tensor.shape), tensors("b")["ec_cache"])
    assert tensor.dtype == "float32"


def test_who_waits_in_vain_is_told() -> None:
    case = Case(1)
    case.pending.add("a")
    case.bus.say(ECWant(1, "a", 60.0))
    case.bus.say(ECWant(2, "b", 60.0))
    case.after(2.5)
    assert case.bus.answers == [ECLost(2)]
    case.pending.clear()
    case.after(1.0)
    assert case.bus.answers == [ECLost(2), ECLost(1)]
    assert not case.store.active


def test_an_entry_larger_than_the_store_is_refused() -> None:
    case = Case(1)
    large = {"ec_cache": torch.zeros(ROWS * 2, HIDDEN)}
    with pytest.raises(TransferError, match="the EC store"):
        case.store.offer("a", Entry(large, ()))
    case.sound()


def test_a_full_disk_fails_one_entry_only() -> None:
    case = Case(2)

    def full(offset: int, size: int) -> None:
        raise TransferError("no room")

    case.store._commit = full
    with pytest.raises(TransferError):
        case.offer("a")
    case.sound()
    case.store._commit = lambda offset, size: None
    assert case.offer("a") and case.offer("b")
    case.sound()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5000)), max_size=60), st.integers(0, 99))
def test_space_never_overlaps_and_comes_back_whole(
    steps: list[tuple[bool, int]], seed: int
) -> None:
    chance, space = random.Random(seed), Space(16 * 1024)
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
