"""Several masters without a network: who is known where, whose load is counted, what is refused."""

import math
from collections import Counter

from protocol.placement import Finished
from protocol.registry import Drain, Heartbeat, Load
from services.master.replication.messages import Beat, Left
from tests.support.master_nodes import LEASE_S, Fleet, fleet_of, info


def test_who_registers_with_one_is_known_by_all_until_it_leaves() -> None:
    fleet = fleet_of("w", "v", count=3)
    assert all(node.known == {"w", "v"} for node in fleet.nodes)
    fleet.nodes[2].deregister("w")
    fleet.deliver()
    assert all(node.known == {"v"} for node in fleet.nodes)
    assert not fleet.nodes[0].beat("w"), "it is told to register again"
    fleet.nodes[1].deregister("v", failed=True)
    fleet.deliver()
    assert not any(node.known for node in fleet.nodes)
    assert all(node.retired == {"w"} for node in fleet.nodes), "v did not mean to leave"


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
    assert a.retired == b.retired == set()


def test_a_restart_replaces_the_first_process_everywhere() -> None:
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


def test_a_worker_that_drained_by_its_own_word_is_used_again_by_its_own_word() -> None:
    fleet = fleet_of("w")
    a, b = fleet.nodes
    a.beat("w", draining=True)
    for joined in a.replicator.own(0.0):  # as when its home has reached Redis again
        a.replicator.tell(joined)
    fleet.deliver()
    assert b.master.registry.instances["w"].draining
    a.beat("w")
    fleet.deliver()
    assert not b.master.registry.instances["w"].draining


def test_what_its_home_says_of_a_drain_is_older_than_what_a_worker_says_here() -> None:
    fleet = fleet_of("w")
    a, b = fleet.nodes
    b.register(info("w"))
    a.beat("w", draining=True)
    for joined in a.replicator.own(0.0):
        a.replicator.tell(joined)
    b.beat("w")
    fleet.deliver()
    assert not b.master.registry.instances["w"].draining


def test_a_breaker_opens_everywhere_and_failures_are_counted_by_each() -> None:
    fleet = fleet_of("w", breaker_failures=2, breaker_open=5.0)
    a, b = fleet.nodes
    a.master.finished(Finished("r", failed=["w"]), 0.0)
    b.master.finished(Finished("r", failed=["w"]), 0.0)
    fleet.deliver()
    assert not any(math.isinf(node.penalty("w")) for node in fleet.nodes)
    a.master.finished(Finished("r", failed=["w"]), 0.0)
    fleet.deliver()
    assert all(math.isinf(node.penalty("w")) for node in fleet.nodes)
    fleet.at(5.0)
    assert not any(math.isinf(node.penalty("w")) for node in fleet.nodes)


def test_what_another_master_says_of_a_breaker_closes_none_sooner() -> None:
    fleet = fleet_of("w", breaker_failures=1, breaker_open=10.0, lease=100.0)
    a, b = fleet.nodes
    breakers, instance = a.master.registry.breakers, a.master.registry.instances["w"]
    breakers.take_out(instance, 0.0, 30e3, "it answers no probe")
    b.master.finished(Finished("r", failed=["w"]), 0.0)
    fleet.deliver()
    fleet.at(29.9)
    assert math.isinf(a.penalty("w"))
    fleet.at(30.0)
    assert not math.isinf(a.penalty("w"))


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


def test_a_worker_that_is_taken_back_while_redis_is_away_is_taken_back_everywhere() -> None:
    fleet = fleet_of("w", "v")
    a, b = fleet.nodes
    for name in ("w", "v"):
        a.master.drain(Drain(name), 1.0)
        a.replicator.drained(Drain(name), 1.0)
    fleet.at(1.0)
    assert all(b.master.registry.instances[name].draining for name in ("w", "v"))
    a.replicator.cut_off()
    for name, draining in (("w", False), ("v", False), ("v", True)):
        a.master.drain(Drain(name, draining=draining), 2.0)
        a.replicator.drained(Drain(name, draining=draining), 2.0)
    a.replicator.connected = True
    for joined in a.replicator.own(3.0):
        a.replicator.tell(joined)
    fleet.at(3.0)
    seen = [{name: n.master.registry.instances[name].draining for name in "wv"} for n in (a, b)]
    assert seen == [{"w": False, "v": True}] * 2
