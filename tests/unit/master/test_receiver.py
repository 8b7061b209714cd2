"""What a master makes of what others tell: wanted, refused, bounded."""

import math
from typing import Any

import pytest

from protocol.errors import InvalidRequest
from protocol.registry import Heartbeat, Load
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
    encode_stored,
)
from tests.support.master_nodes import Node, encode_message, fleet_of, info


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


def test_other_masters_learn_of_an_adapter_and_keep_the_worker() -> None:
    fleet = fleet_of("w")
    registry = fleet.nodes[1].master.registry
    instance = registry.instances["w"]
    fleet.nodes[0].register(info("w", adapters=["x"], adapter_revisions={"x": "1"}))
    fleet.deliver()
    assert registry.instances["w"] is instance
    assert registry.resolve("x") == (registry.fleets["m"], "x")
    assert instance.info.adapter_revisions == {"x": "1"}


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
