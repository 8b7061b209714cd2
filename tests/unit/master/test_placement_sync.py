"""What one master places counts at the others until it ends."""

import math
from typing import Any

import pytest

from protocol.placement import Finished, MediaNeed
from tests.support.master_nodes import SOURCES, Fleet, fleet_of, info


def test_placements_count_at_every_master_until_they_end() -> None:
    names = [f"w{i}" for i in range(8)]
    fleet = fleet_of(*names, settle=60.0)
    a, b = fleet.nodes
    first = {a.place(f"a{i}").decode.instance_id for i in range(4)}
    fleet.deliver()
    second = {b.place(f"b{i}").decode.instance_id for i in range(4)}
    assert first | second == set(names), "no worker gets two while others have none"
    fleet.deliver()
    assert [node.requests(name) for node in fleet.nodes for name in names] == [1.0] * 16
    for i in range(4):
        a.master.finished(Finished(f"a{i}"), 0.0)
        b.master.finished(Finished(f"b{i}", failed=["w0"]), 0.0)
    fleet.deliver()
    assert [node.requests(name) for node in fleet.nodes for name in names] == [0.0] * 16
    assert a.replicator.others.in_flight == b.replicator.others.in_flight == 0


def test_placements_of_a_master_that_falls_silent_are_given_up() -> None:
    fleet = fleet_of("w")
    a, b = fleet.nodes
    a.place("r")
    fleet.deliver()
    assert b.requests("w") == 1.0
    b.now = 3.5
    b.expire()
    assert (b.requests("w"), len(b.replicator.others)) == (0.0, 0)


def test_a_picture_being_encoded_for_one_master_is_joined_by_another() -> None:
    fleet = fleet_of("d")
    for i in range(4):
        fleet.nodes[0].register(info(f"e{i}", "encode"))
    fleet.deliver()
    items = [MediaNeed("x", 600, 10)]
    (first,) = fleet.nodes[0].place("1", items=items).encoders
    fleet.deliver()
    (second,) = fleet.nodes[1].place("2", items=items).encoders
    assert (first.state, second.state) == ("encode", "pending")
    assert first.target == second.target
    fleet.nodes[0].master.finished(Finished("1", "encode", ["x"], failed=["e"]), 0.0)
    fleet.deliver()
    assert fleet.nodes[1].place("3", items=items).encoders[0].state == "encode"


def test_every_master_knows_when_there_were_pictures() -> None:
    """The one that moves workers between roles may place none."""
    fleet = fleet_of("d")
    a, b = fleet.nodes
    a.place("text")
    fleet.deliver()
    seen = b.master.registry.fleets["m"]
    assert seen.media_at == -math.inf
    a.place("picture", items=[MediaNeed("x", 600, 10)])
    fleet.deliver()
    assert seen.media_at > -math.inf


@pytest.mark.parametrize("events", [True, False])
def test_a_prompt_placed_by_one_master_draws_the_next_of_another(events: bool) -> None:
    fleet = Fleet()
    for i in range(6):
        sources = SOURCES if events else []
        fleet.nodes[0].register(info(f"w{i}", events=sources))
    fleet.deliver()
    prompt: dict[str, Any] = {"block_keys": list(range(100)), "max_tokens": 1}
    first = fleet.nodes[0].place("1", **prompt)
    fleet.deliver()
    second = fleet.nodes[1].place("2", **prompt)
    assert second.decode == first.decode
    assert second.hit_tokens == 1599
    longer = {"block_keys": list(range(120)), "prompt_tokens": 1920, "max_tokens": 1}
    third = fleet.nodes[0].place("3", **longer)
    fleet.deliver()
    assert fleet.nodes[1].place("4", **longer).hit_tokens == 1919
    assert third.decode == first.decode


@pytest.mark.parametrize("told", ["b", "c"])
def test_the_end_of_a_request_may_be_told_to_a_master_that_did_not_place_it(told: str) -> None:
    """A proxy has gone over to another master, while the one that placed the request lives."""
    fleet = fleet_of("w", count=3, settle=60.0)
    fleet.nodes[0].place("r")
    fleet.deliver()
    assert [node.requests("w") for node in fleet.nodes] == [1.0] * 3
    other = fleet.nodes["abc".index(told)]
    other.master.registry.instances["w"].failures = 1
    other.master.finished(Finished("r"), 0.0)
    fleet.deliver()
    assert [node.requests("w") for node in fleet.nodes] == [0.0] * 3
    assert len(fleet.nodes[0].master.ledger) == 0
    assert [node.replicator.others.in_flight for node in fleet.nodes] == [0] * 3
    assert other.master.registry.instances["w"].failures == 0, "it has done its work"
    fleet.deliver()
    untold = [node.replicator.outbox.take() for node in fleet.nodes]
    assert untold == [[], [], []], "and it stays said"


def test_a_placement_that_was_not_heard_of_ends_where_it_was_made() -> None:
    fleet = fleet_of("w", settle=60.0)
    a, b = fleet.nodes
    a.place("r")
    a.replicator.outbox.take()  # lost
    b.master.finished(Finished("r", "prefill"), 0.0)
    b.master.finished(Finished("r"), 0.0)
    fleet.deliver()
    assert (a.requests("w"), len(a.master.ledger)) == (0.0, 0)


def test_a_request_placed_anew_elsewhere_outlives_what_lapses_of_it() -> None:
    fleet = fleet_of("w", settle=60.0)
    a, b = fleet.nodes
    a.place("r", deadline_s=5.0)
    fleet.deliver()
    b.place("r")
    fleet.deliver()
    for now in (3.0, 6.0):
        for node in fleet.nodes:
            node.beat("w")
        fleet.at(now)
    assert [len(node.master.ledger) for node in fleet.nodes] == [0, 1]
