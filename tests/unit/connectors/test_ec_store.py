"""The producer's store of embeddings: room, pins, leases, consumers that wait."""

import pytest
import torch

from connectors.base import Entry
from connectors.messages import ECDone, ECForget, ECHeld, ECLost, ECWant
from protocol.errors import TransferError
from tests.support.ec_stores import HIDDEN, ROWS, Case, tensors


def test_what_no_request_needs_makes_room_least_recently_used_first() -> None:
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


def test_an_unnamed_holder_is_ended_by_any_request() -> None:
    case = Case(1)
    assert case.offer("a", "")
    assert not case.offer("b")
    case.bus.say(ECForget("a", "somebody"))
    assert case.offer("b")


def test_a_lease_that_no_consumer_ends_lapses_and_is_counted() -> None:
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


def test_what_is_read_is_not_evicted_in_vain() -> None:
    """Its memory would not be free before the reader is done."""
    case = Case(2)
    assert case.offer("a") and case.offer("b")
    grant = case.want("a")
    assert case.offer("c")
    assert case.store.tensors("a") is not None and case.store.tensors("b") is None
    assert case.store.evictions == 1 and case.store.awaited == 1
    case.bus.say(ECDone(1, "a", grant.grant))
    assert case.store.tensors("a") is not None and case.store.awaited == 0
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


def test_the_bytes_are_where_the_grant_says() -> None:
    case = Case(3)
    for name in ("a", "b", "c"):
        case.offer(name)
    (tensor,) = case.want("b").tensors
    found = case.memory[tensor.offset : tensor.offset + tensor.nbytes].view(torch.float32)
    assert torch.equal(found.view(tensor.shape), tensors("b")["ec_cache"])
    assert tensor.dtype == "float32"


def test_a_grant_on_its_way_to_a_consumer_that_gives_up_ends() -> None:
    case = Case(1)
    case.offer("a")
    case.want("a", 1)
    case.want("a", 2)
    case.bus.say(ECDone(1, "a", 0))
    assert case.store.active and not case.offer("b")
    case.bus.say(ECDone(2, "a", 0))
    assert not case.store.active and case.offer("b")
    case.sound()


def test_one_of_several_that_wait_leaves_the_others_waiting() -> None:
    """Of those that wait for one entry, each by its number: nothing is granted to it any more."""
    case = Case(1)
    for query in (1, 2, 3):
        assert case.bus.say(ECWant(query, "a", 60.0)) is None
    case.bus.say(ECDone(2, "a", 0))
    case.offer("a")
    assert [answer.query for answer in case.bus.answers] == [1, 3]


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


def test_what_others_still_need_is_counted() -> None:
    """Who stops waits for these; what is only cached is no reason."""
    case = Case(2)
    assert case.offer("cached") and case.offer("a", "r1", "r2")
    assert case.store.awaited == 1
    case.bus.say(ECForget("a", "r1"))
    assert case.store.awaited == 1
    case.bus.say(ECForget("a", "r2"))
    assert case.store.awaited == 0
