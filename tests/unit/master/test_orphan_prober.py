"""Which workers a master asks by itself: those whose own master is silent."""

from protocol.registry import Heartbeat
from services.master.probing.orphan_prober import keep, orphans
from services.master.replication.messages import Beat, Kept, decode_stored, encode_stored
from tests.support.master_nodes import LEASE_S, Node, fleet_of, info


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


def test_an_orphan_that_drains_by_its_own_word_is_no_worker_that_a_master_has_drained() -> None:
    fleet = fleet_of("w")
    a, b = fleet.nodes
    a.beat("w", draining=True)
    fleet.deliver()
    keep(b.replicator, info("w"), 8.0)
    (kept,) = b.replicator.outbox.take()
    assert isinstance(kept, Kept)
    late = Node("c")
    late.replicator.receiver.recall(decode_stored(encode_stored(kept.worker)), 8.0, LEASE_S)
    assert late.master.registry.instances["w"].draining
    late.replicator.receiver.hear_all("a", [Beat(Heartbeat("w"))], 8.0)
    assert not late.master.registry.instances["w"].draining
