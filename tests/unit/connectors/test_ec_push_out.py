"""A store whose entries make room for what a consumer waits for."""

import torch

from connectors.base import Entry
from connectors.messages import ECDone, ECForget, ECWant
from tests.support.ec_stores import HIDDEN, ROWS, Case, tensors


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
    assert case.offer("c"), "no request needs a"
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
