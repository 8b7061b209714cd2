"""Restarts of a worker among several masters: a late word of an ended process changes nothing;
and what is too much for one message is told in several."""

from typing import Any

import msgspec

from protocol.registry import Drain, InstanceInfo
from services.master.replication.messages import (
    LARGEST_CHANGE,
    Change,
    Joined,
    Left,
    Placed,
    SharedCharge,
    decode_message,
    encode_messages,
)
from tests.support.master_nodes import LEASE_S, SOURCES, Fleet, Node


def info(name: str, **fields: Any) -> InstanceInfo:
    values = {"url": "http://w:1", "model": "m", "events": SOURCES, **fields}
    return InstanceInfo(name, "prefill_decode", **values)


def generations(node: Node) -> list[tuple[str, str]]:
    known = node.master.registry.instances.values()
    return [(one.info.instance_id, one.info.generation) for one in known]


def beats(fleet: Fleet, node: Node, name: str, generation: str, until: int) -> None:
    for now in range(int(node.now), until):
        fleet.at(float(now))
        assert node.beat(name, generation)
        fleet.deliver()


def test_a_process_that_has_ended_does_not_replace_the_one_that_speaks_to_us() -> None:
    fleet = Fleet(3)
    a, b, c = fleet.nodes
    for old, new in ((info("w", generation="1"), info("w", generation="2")),
                     (info("w2", generation="2"), info("w3"))):  # fmt: skip
        b.register(old)
        b.replicator.outbox.take()  # lost
        fleet.at(b.now + 2.0)
        a.register(new)
        for change in a.replicator.outbox.take():
            c.replicator.receiver.hear("a", change, c.now)
        again = b.replicator.own(b.now)
        assert [one.age_ms for one in again] == [2000.0]
        for node in (a, c):
            node.replicator.receiver.hear_all("b", again, node.now)
            assert generations(node) == [(new.instance_id, new.generation)]
            assert node.replicator.counts["refused_stale_generation"] >= 1
        fleet.deliver()
        b.replicator.receiver.hear_all("a", a.replicator.own(a.now), b.now)
        assert generations(b) == generations(a), "who does not know better yet learns of it"
        beats(fleet, a, new.instance_id, new.generation, int(a.now) + 20)
        assert generations(c) == generations(a)


def test_a_newer_process_is_learned_at_once_and_its_age_told_on() -> None:
    fleet = Fleet(2)
    a, b = fleet.nodes
    a.register(info("w", generation="1"))
    fleet.deliver()
    fleet.at(1.0)
    b.register(info("w", generation="2"))
    fleet.deliver()
    assert generations(a) == [("w", "2")]
    fleet.at(4.0)
    b.master.drain(Drain("w"), b.now)
    b.replicator.drained(Drain("w"), b.now)
    fleet.deliver()
    assert a.master.registry.instances["w"].draining
    assert a.master.registry.instances["w"].since == 1000.0


def test_what_is_written_down_does_not_replace_who_speaks_to_us_under_another_name() -> None:
    node = Node("a")
    node.register(info("new"))
    node.replicator.receiver.recall(Joined(info("old"), "b"), 1.0, LEASE_S)
    assert generations(node) == [("new", "")]
    node.now = LEASE_S / 2 + 0.1
    node.replicator.receiver.recall(Joined(info("newer"), "b"), node.now, LEASE_S)
    assert generations(node) == [("newer", "")]


def told(changes: list[Change]) -> list[tuple[int, list[Change]]]:
    """(size, changes) of each message, as others read them."""
    found, done = [], 0
    for message, part in encode_messages("a", changes):
        sender, heard, garbage = decode_message(message)
        assert (sender, garbage) == ("a", 0)
        assert list(part) == changes[done : done + len(part)]
        done += len(part)
        found.append((len(message), heard))
    assert done == len(changes)
    return found


def test_a_thousand_long_prompts_do_not_make_a_message_that_no_master_reads() -> None:
    charge = SharedCharge("w")
    changes: list[Change] = [Joined(info("w"), "a")]
    changes += [Placed(f"r{i}", "m", 1e3, decode=charge, keys=bytes(65536)) for i in range(500)]
    changes += [Left("w")]
    messages = told(changes)
    assert all(size < 2 << 20 for size, _ in messages) and len(messages) < 50
    assert [change for _, heard in messages for change in heard] == changes


def test_what_cannot_be_told_costs_only_itself() -> None:
    bad = Joined(info("bad", ec_endpoint={"x": 2**70}), "a")
    large = Joined(info("large", ec_endpoint={"x": "y" * LARGEST_CHANGE}), "a")
    good = Joined(info("w"), "a")
    (message,) = told([bad, good, large, Left("x")])
    assert message[1] == [good, Left("x")]
    assert told([]) == [(len(msgspec.msgpack.encode(["a", []])), [])], "the sender is there"
    assert told([bad])[0][1] == []
