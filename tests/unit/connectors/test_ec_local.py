"""The store of a worker that encodes for itself: bounded, without losing what is needed."""

import time

import pytest
import torch

from connectors.base import EC_TENSOR, Entry
from connectors.ec.local import LocalEC
from protocol.errors import TransferError, TransferTimeout
from tests.conftest import Pass

ROWS, HIDDEN = 4, 64
SIZE = ROWS * HIDDEN * 4


def store(count: int) -> LocalEC:
    """Leases and loads end after half a minute."""
    return LocalEC(count * SIZE, 30.0, 30.0)


def entry(*holders: str, rows: int = ROWS) -> Entry:
    return Entry({EC_TENSOR: torch.randn(rows, HIDDEN)}, holders)


def test_what_is_kept_stays_until_its_request_is_done() -> None:
    ec = store(2)
    assert ec.offer("a", entry("r1")) is not None
    assert ec.offer("b", entry("")) is not None
    assert ec.offer("c", entry("r3")) is None
    ec.release("a", None, "r1")
    assert ec.offer("c", entry("r3")) is not None
    assert ec.lookup("a") is None and ec.lookup("b") is not None
    assert ec.offer("d", entry()) is None
    ec.release("b", None, "r2")
    assert ec.offer("d", entry()) is not None, "r2 is the one whose id was not known"
    assert ec.check_integrity() == []


def test_what_is_found_again_is_kept_again() -> None:
    ec = store(1)
    ec.offer("a", entry())
    assert ec.find("a", "r") is not None
    assert ec.offer("b", entry()) is None
    ec.release("a", None, "r")
    assert ec.offer("b", entry()) is not None
    assert ec.stats().evictions == 1


def test_a_request_that_was_done_first_pins_nothing() -> None:
    ec = store(1)
    ec.release("a", None, "r")
    ec.offer("a", entry("r"))
    assert ec.offer("b", entry()) is not None


def test_a_request_that_never_comes_pins_for_a_lease(passes: Pass) -> None:
    ec = store(1)
    ec.offer("a", entry("r"))
    passes(20.0)
    ec.poll()
    assert ec.offer("b", entry()) is None
    passes(11.0)
    ec.poll()
    assert ec.offer("b", entry()) is not None
    assert ec.stats().leases_expired == 1


def test_what_is_waited_for_takes_the_place_of_what_waits() -> None:
    """A request whose pictures do not fit together gets them one by one."""
    ec = store(1)
    first = entry("r")
    ec.offer("a", first)
    load = ec.fetch("b", None)
    assert load.poll() is None and ec.wanted("b")
    left: dict[str, Entry] = {}
    assert ec.swap("b", entry("r"), left) is not None
    assert left["a"].holders == ("r",)
    assert left["a"].tensors[EC_TENSOR] is first.tensors[EC_TENSOR]
    assert load.poll() is not None
    assert not ec.wanted("b")
    assert ec.check_integrity() == []


def test_a_push_out_does_not_start_leases_anew(passes: Pass) -> None:
    ec = store(1)
    ec.offer("a", entry("r"))
    left: dict[str, Entry] = {}
    ec.swap("b", entry(), left)
    assert left["a"].held(time.monotonic())
    passes(31.0)
    assert not left["a"].held(time.monotonic())
    ec.offer("a", left["a"])
    assert ec.offer("b", entry()) is not None, "a is kept for no request"
    assert ec.stats().leases_expired == 1


def test_an_entry_larger_than_the_store_is_refused() -> None:
    ec = store(1)
    with pytest.raises(TransferError, match="ec_buffer_size"):
        ec.offer("a", entry(rows=ROWS + 1))
    assert ec.check_integrity() == []


def test_a_picture_does_not_keep_the_run_that_made_it() -> None:
    """Models return the pictures of one run as views of one tensor."""
    ec, (first, second) = store(2), torch.split(torch.randn(2 * ROWS, HIDDEN), ROWS)
    ec.offer("a", Entry({EC_TENSOR: first}, ()))
    kept = ec.lookup("a")
    assert kept is not None and torch.equal(kept[EC_TENSOR], first)
    assert kept[EC_TENSOR].untyped_storage().nbytes() == SIZE == ec.stats().bytes_held
    whole = second.clone()
    ec.offer("b", Entry({EC_TENSOR: whole}, ()))
    assert ec.lookup("b") == {EC_TENSOR: whole}, "what has memory of its own is not copied"


def test_a_load_gives_up_in_time(passes: Pass) -> None:
    ec = store(1)
    load = ec.fetch("a", None)
    assert ec.check_integrity() != []
    passes(31.0)
    with pytest.raises(TransferTimeout):
        load.poll()
    load.cancel()
    load.cancel()
    assert not ec.wanted("a") and ec.check_integrity() == []
