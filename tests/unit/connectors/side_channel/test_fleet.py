"""Side channels of engines that have a fleet key, and what is said without a handshake."""

from pathlib import Path

import pytest

from connectors.messages import Alive, ECWant, Heartbeat, KVGone, KVWant
from protocol.curve import Curve
from protocol.fleet_key import FleetKey
from tests.support.links import Link, linked
from tests.support.raw_peers import RawConsumer, answered, introduced

OURS = Curve.of(FleetKey("the key of this fleet"))
OTHERS = Curve.of(FleetKey("the key of another one"))


def test_engines_of_one_fleet_work_and_others_are_not_heard(tmp_path: Path) -> None:
    with linked("shm", tmp_path, curve=OURS) as link:
        link.works()
        port = link.producer.node.server.port
        member = RawConsumer(port, OURS)
        intruders = [RawConsumer(port), RawConsumer(port, OTHERS)]
        for intruder in intruders:
            intruder.say(Heartbeat([]))
        member.say(Heartbeat([]))
        assert answered(link, member) == Alive()
        link.works()
        assert [intruder.heard() for intruder in intruders] == [None, None]
        for raw in (member, *intruders):
            raw.close()


@pytest.mark.parametrize("other", ["kv", ""])
def test_embeddings_are_not_granted_without_a_handshake_for_them(
    link: Link, intruder: RawConsumer, other: str
) -> None:
    if link.transport == "shared_storage":
        pytest.skip("embeddings are files there")
    name, before = "0" * 64, link.producer.refused
    if other:
        introduced(link, intruder, other)
    intruder.say(ECWant(1, name, 5.0))
    intruder.say(Heartbeat([]))
    assert answered(link, intruder) == Alive()
    assert link.producer.refused == before + 1


def test_kv_is_not_told_of_without_a_handshake(link: Link, intruder: RawConsumer) -> None:
    ref, before = link.offer([1]), link.producer.refused
    intruder.say(KVWant(ref.request_id, False))
    intruder.say(Heartbeat([]))
    assert answered(link, intruder) == Alive()
    assert link.producer.refused == before + 1
    load = link.consumer.kv.fetch(ref, 1)
    load.place(0, [0])
    link.copied(load)


def test_who_was_introduced_is_served(link: Link, intruder: RawConsumer) -> None:
    introduced(link, intruder, "kv")
    intruder.say(KVWant("nobody's", False))
    assert isinstance(answered(link, intruder), KVGone)
