"""What producers get that answer nonsense, over every transport: refused and counted."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.messages import Alive, ECGrant, ECTensor, FromProducer, Heartbeat, KVEnd, KVReady
from protocol.errors import TransferError
from tests.support.links import BLOCKS, MEMORY, Link
from tests.support.raw_peers import RawProducer
from tests.support.side_messages import CONSUMERS, encode, frames, with_fields


@settings(max_examples=60, deadline=None)
@given(st.lists(frames(), min_size=1, max_size=20))
def test_a_consumer_goes_on_after_any_answer(link: Link, sent: list[list[bytes]]) -> None:
    raw, heard = RawProducer(link.producer.node), list[Any]()
    client, address = link.consumer.node.client, ("127.0.0.1", raw.port)
    client.on(Alive, lambda peer, message: heard.append(peer))
    client.send(address, Heartbeat([]))
    asked: list[Any] = [None]
    link.until(lambda: (asked.append(raw.took("Heartbeat")), asked[-1])[1])
    assert asked[-1] is not None
    for one in sent:
        raw.send_raw(asked[-1].identity, *one)
    raw.send(asked[-1].identity, Alive())
    link.until(lambda: address in heard)
    client.forget(address)
    raw.close()


def test_answers_that_make_no_sense_are_counted(link: Link, impostor: RawProducer) -> None:
    before = link.consumer.refused
    load = link.consumer.kv.fetch(impostor.ref("r", 16), 1)
    load.place(0, [0])
    identity = asked_of(link, impostor, load, "KVWant")
    bad = [b"noise", encode(CONSUMERS[0]), with_fields(KVReady("r", 1, 0, [1]), blocks=[-1]),
           with_fields(KVEnd("r", 1, 16, 0, {}), rope_delta=1 << 40)]  # fmt: skip
    for data in bad:
        impostor.send_raw(identity, data)
    link.until(lambda: link.consumer.refused == before + len(bad))
    load.cancel()


def asked_of(link: Link, impostor: RawProducer, load: Any, kind: str) -> bytes:
    """Who asks, once it does."""
    asked: list[Any] = [None]

    def done() -> bool:
        assert load.poll() is None
        asked.append(impostor.took(kind))
        return asked[-1] is not None

    link.until(done)
    identity: bytes = asked[-1].identity
    return identity


TENSOR = ECTensor("ec_cache", (8, 64), "float32", 0, 2048)
GRANTS = {
    "nothing": [],
    "beyond the region": [ECTensor("ec_cache", (8, 64), "float32", 1 << 40, 2048)],
    "across its end": [ECTensor("ec_cache", (8, 64), "float32", (64 << 10) - 256, 2048)],
    "another size": [ECTensor("ec_cache", (8, 65), "float32", 0, 2048)],
    "no size": [ECTensor("ec_cache", (0, 64), "float32", 0, 0)],
    "no dtype": [ECTensor("ec_cache", (8, 64), "object", 0, 2048)],
    "no main tensor": [ECTensor("other", (8, 64), "float32", 0, 2048)],
    "the same twice": [TENSOR, TENSOR],
    "far apart": [TENSOR, ECTensor("deepstack_00", (8, 64), "float32", 32 << 10, 2048)],
    "no shape": [ECTensor("ec_cache", (), "float32", 0, 4)],
    "one dimension": [ECTensor("ec_cache", (512,), "float32", 0, 2048)],
    "between two numbers": [ECTensor("ec_cache", (8, 64), "float32", 2, 2048)],
    "between two numbers of an entry": [
        ECTensor("deepstack_00", (1, 1), "float16", 2, 2),
        ECTensor("ec_cache", (8, 64), "float32", 4, 2048),
    ],
    "too large": [ECTensor("ec_cache", (1 << 20, 64), "float32", 0, 1 << 28)],
}


@pytest.mark.parametrize("tensors", GRANTS.values(), ids=GRANTS.keys())
def test_a_grant_that_cannot_be_is_refused(
    link: Link, impostor: RawProducer, tensors: list[ECTensor]
) -> None:
    if link.transport not in MEMORY:
        pytest.skip("embeddings are files, nothing is granted")
    load = link.consumer.ec.fetch("a", impostor.params())
    asked: list[Any] = []
    link.until(
        lambda: load.poll() or asked.extend(filter(None, [impostor.took("ECWant")])) or asked
    )
    impostor.send(asked[0].identity, ECGrant(asked[0].message["query"], 3, tensors))
    with pytest.raises(TransferError):
        link.until(load.poll)
    load.cancel()
    link.until(lambda: impostor.took("ECDone"))
    link.sound()


TELLS: dict[str, list[FromProducer]] = {
    "a block beyond the pool": [KVReady("r", 1, 0, [BLOCKS]), KVEnd("r", 1, 16, 0, {})],
    "a block beyond all": [KVReady("r", 1, 0, [1 << 40]), KVEnd("r", 1, 16, 0, {})],
    "more blocks than asked for": [KVReady("r", 1, 0, [1, 2])],
    "a gap": [KVReady("r", 1, 1, [1])],
    "an end before its blocks": [KVEnd("r", 1, 16, 0, {})],
    "fewer blocks, anew": [
        KVReady("r", 1, 0, [1]), KVEnd("r", 1, 16, 0, {}), KVReady("r", 2, 0, []),
    ],
}  # fmt: skip


@pytest.mark.parametrize("told", TELLS.values(), ids=TELLS.keys())
def test_blocks_that_cannot_be_are_refused(
    link: Link, impostor: RawProducer, told: list[FromProducer]
) -> None:
    load = link.consumer.kv.fetch(impostor.ref("r", 16), 1)
    load.place(0, [0])
    impostor.send(asked_of(link, impostor, load, "KVWant"), *told)
    link.fails(load)
    link.sound()


def test_an_instance_that_is_not_there_is_not_asked(link: Link) -> None:
    ref = msgspec.structs.replace(link.offer([1]), instance_id="f" * 32)
    load = link.consumer.kv.fetch(ref, 1)
    load.place(0, [0])
    assert "has left" in link.fails(load).message
    link.producer.kv.release(ref.request_id, "")


@pytest.mark.parametrize(
    "address",
    [
        ("no host!", 5),
        ("", 5),
        ("127.0.0.1", 70_000),
        ("127.0.0.1", -1),
        ("ho\0st", 5),
        ("ü" * 9, 5),
    ],
)
def test_an_address_that_is_none_is_refused(link: Link, address: tuple[str, int]) -> None:
    ref = msgspec.structs.replace(link.offer([1]), host=address[0], port=address[1])
    load = link.consumer.kv.fetch(ref, 1)
    link.fails(load)
    link.producer.kv.release(ref.request_id, "")
    if link.transport in MEMORY:
        params = {"peer_host": address[0], "peer_port": address[1]}
        with pytest.raises(TransferError):
            link.loaded("a", params)
        link.consumer.ec.release("a", params, "r")
    assert address not in link.consumer.node.client._connections
