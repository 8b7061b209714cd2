"""Several masters without a network: who is known where, whose load is counted, what is refused."""

import math
from collections import Counter
from typing import Any

import pytest

from protocol.errors import InvalidRequest
from protocol.registry import (
    Drain,
    Finished,
    Heartbeat,
    InstanceInfo,
    Load,
    MediaNeed,
)
from services.master.probing.orphan_prober import keep, orphans
from services.master.replication.messages import (
    Beat,
    Change,
    Joined,
    Left,
    Placed,
    SharedCharge,
    SharedEncode,
    decode_message,
    decode_stored,
    encode_message,
    encode_stored,
)
from tests.support.master_nodes import LEASE_S, SOURCES, Fleet, Node


def info(name: str, role: Any = "prefill_decode", **fields: Any) -> InstanceInfo:
    values = {"url": f"http://{name}:1", "model": "m", "events": SOURCES, **fields}
    return InstanceInfo(name, role, **values)


def fleet_of(*workers: str, count: int = 2, **config: Any) -> Fleet:
    """`workers` registered with the first master."""
    fleet = Fleet(count, **config)
    for name in workers:
        fleet.nodes[0].register(info(name))
    fleet.deliver()
    return fleet


def test_who_registers_with_one_is_known_by_all_until_it_leaves() -> None:
    fleet = fleet_of("w", "v", count=3)
    assert all(node.known == {"w", "v"} for node in fleet.nodes)
    fleet.nodes[2].deregister("w")
    fleet.deliver()
    assert all(node.known == {"v"} for node in fleet.nodes)
    assert not fleet.nodes[0].beat("w"), "it is told to register again"


def test_heartbeats_to_one_keep_a_worker_alive_at_all_and_a_lapse_is_everywhere() -> None:
    fleet = fleet_of("w")
    a, b = fleet.nodes
    for now in range(0, 60, 3):
        fleet.at(float(now))
        assert a.beat("w", load=Load(queued=now))
        fleet.deliver()
        assert b.requests("w") == now
    fleet.at(57.0 + LEASE_S - 0.1)
    assert a.known == b.known == {"w"}
    fleet.at(57.0 + LEASE_S)
    assert a.known == b.known == set()


def test_another_life_replaces_the_first_everywhere() -> None:
    fleet = fleet_of("w")
    fleet.nodes[1].register(info("w", generation="2"))
    fleet.deliver()
    assert {n.master.registry.instances["w"].info.generation for n in fleet.nodes} == {"2"}
    fleet.nodes[0].register(info("new", url="http://w:1"))
    fleet.deliver()
    assert all(node.known == {"new"} for node in fleet.nodes), "restarted under another id"


def test_a_drain_spreads_from_any_master_and_with_heartbeats() -> None:
    fleet = fleet_of("w", "v")
    a, b = fleet.nodes
    b.master.drain(Drain("w"), 0.0)
    b.replicator.drained(Drain("w"), 0.0)
    fleet.deliver()
    assert a.master.registry.instances["w"].draining
    assert a.beat("w")
    a.master.drain(Drain("v"), 0.0)
    a.beat("v")
    fleet.deliver()
    assert b.master.registry.instances["v"].draining


def test_placements_count_at_every_master_until_they_end() -> None:
    names = [f"w{i}" for i in range(8)]
    fleet = fleet_of(*names, settle=60.0)
    a, b = fleet.nodes
    first = {a.place(f"a{i}").decode.instance_id for i in range(4)}
    fleet.deliver()
    second = {b.place(f"b{i}").decode.instance_id for i in range(4)}
    assert first | second == set(names), "nobody gets two while others have none"
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


def test_a_breaker_opens_everywhere_and_failures_are_counted_by_each() -> None:
    fleet = fleet_of("w", breaker_failures=2, breaker_open=5.0)
    a, b = fleet.nodes
    a.master.finished(Finished("r", failed=["w"]), 0.0)
    b.master.finished(Finished("r", failed=["w"]), 0.0)
    fleet.deliver()
    assert not any(math.isinf(penalty(node, "w")) for node in fleet.nodes)
    a.master.finished(Finished("r", failed=["w"]), 0.0)
    fleet.deliver()
    assert all(math.isinf(penalty(node, "w")) for node in fleet.nodes)
    fleet.at(5.0)
    assert not any(math.isinf(penalty(node, "w")) for node in fleet.nodes)


def penalty(node: Node, name: str) -> float:
    instance = node.master.registry.instances[name]
    return float(instance.pool.penalty[instance.row])


def test_a_worker_that_speaks_to_both_survives_the_silence_of_one() -> None:
    fleet = fleet_of("w")
    a, b = fleet.nodes
    b.register(info("w"))
    for now in (2.0, 4.0, 6.0, 8.0, 10.0):
        fleet.at(now)
        b.beat("w")
    fleet.nodes[0].replicator.receiver.hear("b", Beat(Heartbeat("w")), 10.0)
    assert a.replicator.homes.elsewhere["w"].master == "b"
    b.replicator.receiver.hear("a", Left("w", lapsed=True), 10.0)
    assert b.known == {"w"}


def test_the_same_id_registered_at_two_masters_at_once_has_one_winner() -> None:
    fleet = Fleet()
    fleet.nodes[0].register(info("w", url="http://y:1"))
    fleet.nodes[1].register(info("w", url="http://x:1"))
    fleet.deliver()
    assert {n.master.registry.instances["w"].info.url for n in fleet.nodes} == {"http://x:1"}
    counts = sum((n.replicator.counts for n in fleet.nodes), Counter[str]())
    assert counts["refused_duplicate_instance"] == 1


def test_a_heartbeat_of_an_unknown_worker_makes_it_wanted() -> None:
    fleet = fleet_of("w")
    late = Node("c")
    late.replicator.receiver.hear_all("a", [Beat(Heartbeat("w"))], 0.0)
    assert late.replicator.receiver.wanted == {"w"}
    joined = Joined(info("w", load=Load(queued=3)), "a", draining=True)
    late.replicator.receiver.recall(decode_stored(encode_stored(joined)), 0.0, 4.0)
    assert late.replicator.receiver.wanted == set()
    assert late.master.registry.instances["w"].draining
    assert late.requests("w") == 0.0, "a written load would be old"
    late.now = 4.0
    late.expire()
    assert late.known == set(), "only what was left of the lease"
    assert fleet.nodes[0].known == {"w"}
    fleet.nodes[1].replicator.receiver.hear_all("a", [Beat(Heartbeat("w", "2"))], 0.0)
    assert fleet.nodes[1].replicator.receiver.wanted == {"w"}, "another life than the one known"


def test_orphans_are_those_whose_home_is_silent() -> None:
    fleet = fleet_of("w")
    a, b = fleet.nodes
    fleet.at(5.0)
    b.replicator.others.greet("a", 5.0)
    assert orphans(b.replicator, 5.0, 300.0) == [], "its home is there"
    b.replicator.connected = False
    assert [o.instance_id for o in orphans(b.replicator, 5.0, 300.0)] == ["w"]
    assert orphans(b.replicator, 301.0, 300.0) == [], "not for ever"
    assert orphans(a.replicator, 5.0, 300.0) == [], "it speaks to us"
    keep(b.replicator, info("w"), 8.0)
    b.now = 8.0 + LEASE_S - 0.1
    b.expire()
    assert b.known == {"w"}
    keep(b.replicator, info("w", generation="other"), b.now)
    b.now = 8.0 + LEASE_S
    b.expire()
    assert b.known == set()


def test_departures_wait_for_the_connection_and_nothing_else_does() -> None:
    fleet = fleet_of("w", "v")
    a, b = fleet.nodes
    a.place("before")
    a.replicator.cut_off()
    a.deregister("w")
    a.beat("v")
    a.place("r")
    told = a.replicator.outbox.take()
    assert [type(change) for change in told] == [Left]
    a.replicator.outbox.put_back(told)
    a.replicator.connected = True
    fleet.deliver()
    assert b.known == {"v"}


def absurd(**fields: Any) -> Placed:
    return Placed("r", "m", **{"ttl_ms": 1.0, "decode": SharedCharge("w"), **fields})


@pytest.mark.parametrize(
    "change",
    [
        absurd(ttl_ms=math.nan),
        absurd(decode=SharedCharge("w", work_ms=math.inf)),
        absurd(decode=SharedCharge("w", tokens=math.nan)),
        absurd(encodes=[SharedEncode("x", SharedCharge("w"), 0.0, math.nan)]),
        Beat(Heartbeat("w", load=Load(free_blocks=2, total_blocks=1))),
        Joined(info("w", url="http://zzz:1"), "b"),
    ],
)
def test_what_cannot_be_is_refused_counted_and_harmless(change: Change) -> None:
    fleet = fleet_of("w", count=1)
    (node,) = fleet.nodes
    node.now = 5.0
    node.replicator.receiver.hear_all("b", [change, Beat(Heartbeat("w"))], 5.0)
    assert sum(n for kind, n in node.replicator.counts.items() if kind.startswith("refused")) == 1
    assert node.requests("w") == 0.0
    assert node.master.registry.instances["w"].info.url == "http://w:1"
    assert node.replicator.homes.elsewhere["w"].heard == 5.0, "the rest of the message counted"


def test_what_is_no_message_is_refused() -> None:
    for data in (b"", b"\xc1", b"hello", b"\x92\xa1a\x01"):
        with pytest.raises(InvalidRequest):
            decode_message(data)
        with pytest.raises(InvalidRequest):
            decode_stored(data)
    good = encode_message("a", [Left("w")])
    _, changes, garbage = decode_message(good.replace(b"left", b"lift"))
    assert (changes, garbage) == ([], 1), "another version's word costs only itself"


def test_what_is_kept_of_others_is_bounded() -> None:
    fleet = fleet_of("w", count=1, max_in_flight=10, max_instances=20)
    (node,) = fleet.nodes
    for i in range(100):
        node.replicator.receiver.hear_all(f"m{i}", [Beat(Heartbeat(f"u{i}"))], 0.0)
        node.replicator.receiver.hear_all("m0", [absurd(ttl_ms=1e4)], 0.0)
        more = Placed(f"r{i}", "m", 1e4, decode=SharedCharge("w"), keys=bytes(8 * 100))
        node.replicator.receiver.hear_all("m0", [more], 0.0)
    assert len(node.replicator.others) <= 64
    assert len(node.replicator.receiver.wanted) <= 20
    assert node.replicator.others.in_flight <= 10
    assert node.replicator.counts["refused_too_many_placed"] > 0
    node.now = 11.0
    node.expire()
    assert node.replicator.others.in_flight == 0


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


def test_a_worker_is_taken_back_on_every_master() -> None:
    fleet = Fleet(2)
    a, b = fleet.nodes
    a.register(info("w"))
    fleet.at(1.0)
    b.master.drain(Drain("w"), 1.0)
    b.replicator.drained(Drain("w"), 1.0)
    fleet.at(2.0)
    taken_back = Drain("w", draining=False)
    b.master.drain(taken_back, 2.0)
    b.replicator.drained(taken_back, 2.0)
    fleet.at(3.0)
    a.beat("w")
    fleet.at(4.0)
    assert [n.master.registry.instances["w"].draining for n in fleet.nodes] == [False, False]
