"""Requests of proxies without a model: by what the master has placed itself."""

from typing import Any

import pytest

from protocol.kv_events import BlockStored, EmbeddingStored
from protocol.placement import Finished, Placement, ScheduleRequest
from protocol.registry import InstanceInfo, InstanceRole, Load
from tests.support.master_fleets import (
    LOAD,
    PROMPT,
    add,
    asking,
    hear,
    master,
    picture,
    place,
    prefill_of,
    sources,
)
from tests.support.master_nodes import Fleet as Masters


def guessing(name: str, **fields: Any) -> ScheduleRequest:
    return asking(name, predicted=True, **fields)


def test_what_was_placed_draws_the_next_one_also_where_events_are_published() -> None:
    made = master("prefill", "prefill", "prefill", "decode", "decode")
    first = place(made, guessing("a"))
    assert first.hit_tokens == 0
    made.finished(Finished("a"), 1.0)
    for number in range(5):
        placement = place(made, guessing(f"r{number}"), 2.0 + number)
        assert prefill_of(placement) == prefill_of(first)
        assert placement.hit_tokens == 159
        made.finished(Finished(f"r{number}"), 2.5 + number)


def test_a_prediction_ends() -> None:
    made = master("prefill", "prefill", "decode", predict_ttl=10.0)
    place(made, guessing("a"))
    made.finished(Finished("a"), 1.0)
    made.expire(9.0)
    assert place(made, guessing("b"), 9.0).hit_tokens > 0
    made.finished(Finished("b"), 9.0)
    made.expire(20.0)
    assert place(made, guessing("c"), 20.0).hit_tokens == 0


def test_predicted_keys_never_meet_exact_ones() -> None:
    made = master("encode", "prefill", "decode")
    for name in ("p1", "d2"):
        hear(made, name, BlockStored(list(PROMPT)))
    hear(made, "e0", EmbeddingStored("x"))
    item = [picture("x")]
    guessed = place(made, guessing("a", items=item))
    assert (guessed.hit_tokens, sources(guessed)) == (0, [("encode", "e0")])
    exact = place(made, asking("b", blocks=0, items=item))
    assert sources(exact) == [("cached", "e0")], "its event has said so"
    other = ScheduleRequest("c", 160, block_keys=[1, 2, 3], items=[picture("y")], predicted=True)
    place(made, other)
    for name in ("a", "b", "c"):
        made.finished(Finished(name), 1.0)
    again = ScheduleRequest("d", 160, block_keys=[1, 2, 3], items=[picture("y")])
    exact = place(made, again, 2.0)
    assert (exact.hit_tokens, sources(exact)) == (0, [("encode", "e0")])


def test_a_pending_encode_is_joined_by_its_own_kind_only() -> None:
    made = master("encode", "encode", "prefill", "decode")
    first = sources(place(made, guessing("a", items=[picture("x")])))
    ((state, at),) = first
    assert state == "encode"
    assert sources(place(made, guessing("b", items=[picture("x")]))) == [("pending", at)]
    ((state, _),) = sources(place(made, asking("c", blocks=0, items=[picture("x")])))
    assert state == "encode"


def test_an_item_goes_to_the_encoder_that_had_it_despite_a_prefix_hit() -> None:
    made = master("encode", "encode", "encode", "prefill", "decode")
    ((_, at),) = sources(place(made, guessing("a", items=[picture("x")])))
    made.finished(Finished("a", "encode", ["x"]), 0.5)
    made.finished(Finished("a"), 1.0)
    for number in range(4):
        placement = place(made, guessing(f"r{number}", items=[picture("x")]), 2.0 + number)
        assert placement.hit_tokens > 0
        assert sources(placement) == [("cached", at)]
        made.finished(Finished(f"r{number}"), 2.5 + number)


def test_an_encode_that_failed_is_not_taken_to_be_there() -> None:
    made = master("encode", "prefill", "decode")
    place(made, guessing("a", items=[picture("x")]))
    made.finished(Finished("a", "encode", ["x"], failed=["e0"]), 0.5)
    assert sources(place(made, guessing("b", items=[picture("x")]), 1.0)) == [("encode", "e0")]


@pytest.mark.parametrize("total_blocks", [0, 12])
def test_a_cache_is_predicted_as_large_as_it_is(total_blocks: int) -> None:
    made = master("prefill", predict_blocks=1000)
    load = Load(free_blocks=total_blocks, total_blocks=total_blocks, rates=LOAD.rates)
    add(made, "d1", "decode", load=load)
    made.registry.instances["p0"].pool.total_blocks[:] = total_blocks
    for number in range(4):
        keys = [number * 10 + i for i in range(10)]
        place(made, ScheduleRequest(f"r{number}", 160, block_keys=keys, predicted=True), 0.0)
        made.finished(Finished(f"r{number}"), 0.1)
    held = made.registry.fleet("m").predicted.blocks
    assert held.count(made.registry.instances["p0"].slot) == (total_blocks or 40)


def test_other_masters_learn_what_was_placed() -> None:
    masters = Masters(2)
    a, b = masters.nodes
    roles: dict[str, InstanceRole] = {"p0": "prefill", "p1": "prefill", "d0": "decode"}
    for name, role in roles.items():
        a.register(InstanceInfo(name, role, f"http://{name}:1", "m"))
    masters.at(1.0)
    keys = list(range(100, 200))
    first: Placement = a.place("r", block_keys=keys, predicted=True)
    masters.at(2.0)
    second = b.place("s", block_keys=keys, predicted=True)
    assert second.hit_tokens > 0 and prefill_of(second) == prefill_of(first)
    third = b.place("t", block_keys=keys)
    assert third.hit_tokens == 0, "the keys of another kind of proxy"
