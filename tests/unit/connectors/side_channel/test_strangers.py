"""Peers that speak, but of other versions, layouts and places: refused by name."""

from dataclasses import replace

import msgspec
import pytest
from blake3 import blake3

from connectors.kv.base import KVLoad
from connectors.messages import Hello, KVReady, Refused
from protocol.errors import IncompatiblePeer, TransferError
from tests.support.links import Link
from tests.support.raw_peers import RawConsumer, RawProducer, answered

encode = msgspec.msgpack.encode
NOTHING = "x" * 32


def test_a_peer_of_another_version_is_told_so(link: Link, intruder: RawConsumer) -> None:
    hello = Hello(4, "me", link.transport, "kv", "layout", version=99)
    intruder.say(hello)
    answer = answered(link, intruder)
    assert isinstance(answer, Refused) and answer.query == 4
    assert "99" in answer.reason and "ours is" in answer.reason


@pytest.mark.parametrize(
    ("transport", "region", "compatibility"),
    [(NOTHING, "kv", "layout"), ("", "nowhere", ""), ("", "kv", "another layout")],
)
def test_a_peer_that_does_not_fit_is_told_so(
    link: Link, intruder: RawConsumer, transport: str, region: str, compatibility: str
) -> None:
    intruder.say(Hello(5, "me", transport or link.transport, region, compatibility))
    answer = answered(link, intruder)
    assert isinstance(answer, Refused)
    assert link.producer.node.instance_id in answer.reason and "instance me" in answer.reason


def test_a_refusal_names_both_sides(link: Link) -> None:
    from tests.support.links import Side

    stranger = Side(link.transport, link.folder, produces=False, layout="another layout")
    try:
        ref = link.offer([1])
        load = stranger.kv.fetch(ref, 1)
        with pytest.raises(IncompatiblePeer, match=r"offers region 'kv'.* needs it"):
            link.until(load.poll, link.producer, stranger)
        load.cancel()
    finally:
        stranger.close()
    link.producer.kv.release(ref.request_id, "")


def _shm(name: str) -> bytes:
    return encode({"name": name, "nbytes": 4096})


def _files(folder: str) -> bytes:
    body = encode({"folder": folder, "nbytes": 4096, "granule": 1024})
    return blake3(body).digest() + body


PATHS = {
    "shm": [_shm("../../etc/passwd"), _shm("region-/../../../etc/passwd"), _shm("/etc/passwd"),
            _shm("region-\0"), _shm("region-nobody"), _shm("region-" + "a" * 300)],
    "shared_storage": [_files(".."), _files("../.regions-x/kv"), _files("/etc/kv"),
                       _files(".regions-x/../../etc"), _files(".regions-x/ec"), _files("\0/kv"),
                       _files(".regions-nobody/kv")],
    "nixl": [b"noise"],
    "ucx": [b"noise"],
}  # fmt: skip


def test_a_description_that_leads_elsewhere_is_refused(link: Link, impostor: RawProducer) -> None:
    for description in PATHS[link.transport]:
        impostor.description = description
        load = link.consumer.kv.fetch(impostor.ref("r", 16), 1)
        load.place(0, [0])
        with pytest.raises(TransferError):
            link.until(lambda load=load: (impostor.poll(), load.poll())[1])
        load.cancel()


def test_a_word_about_an_embedding_goes_to_no_producer_of_kv(link: Link) -> None:
    """The consumer has a connection to this one, for KV only."""
    from tests.support.links import Side

    other = Side(link.transport, link.folder, produces=False)
    try:
        link.until(lambda: not link.consumer.node.peers.known("nobody"))
        other_ref = other.kv.endpoint()
        other.kv.offer("q")
        ref = msgspec.structs.replace(
            other.kv.seal("q", 16, 0, {}), host="127.0.0.1", port=other_ref["remote_port"]
        )
        load = link.consumer.kv.fetch(ref, 1)
        link.until(lambda: load.poll() or load.fed, link.consumer, other)
        link.consumer.ec.release("a", None, "r")
        load.cancel()
        link.until(lambda: "q" in other.ended, link.consumer, other)
        assert other.refused == 0
    finally:
        other.close()


PLACES = [
    {"address": -1}, {"address": 0}, {"address": (1 << 64) - 64},
    {"nbytes": -1}, {"nbytes": 0}, {"nbytes": 1 << 63}, {"device": -1}, {"device": 1 << 40},
]  # fmt: skip


def test_a_place_that_no_memory_has_is_refused(link: Link, impostor: RawProducer) -> None:
    """NIXL would be told it when blocks are read."""
    if link.transport != "nixl":
        pytest.skip("the others do not name addresses")
    from connectors.transports.nixl_agent import NixlDescription

    real = NixlDescription.decode(link.producer.node.transport.describe("kv"))
    for numbers in PLACES:
        place = replace(real.place, **numbers)  # type: ignore[arg-type]
        impostor.description = NixlDescription(real.agent, place, real.metadata).encode()
        load = link.consumer.kv.fetch(impostor.ref("r", 32), 2)
        load.place(0, [0, 2])

        def polled(load: KVLoad = load) -> object:
            asked = impostor.took("KVWant")
            if asked is not None:
                impostor.send(asked.identity, KVReady("r", 1, 0, [1, 3]))
            return load.poll()

        with pytest.raises(TransferError, match="malformed"):
            link.until(polled)
        load.cancel()
