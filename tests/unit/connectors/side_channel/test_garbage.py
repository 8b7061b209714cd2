"""What consumers get that send nonsense, over every transport: refused, counted, logged once."""

import logging
import os
import socket
import threading

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.messages import Alive, ECDone, ECWant, Heartbeat, KVFetched, KVWant
from tests.support.links import Link, linked
from tests.support.raw_peers import RawConsumer, answered
from tests.support.side_messages import CONSUMERS, encode, frames, with_fields

GARBAGE: dict[str, tuple[bytes, ...]] = {
    "nothing": (b"",),
    "noise": (os.urandom(64),),
    "text": (b"GET / HTTP/1.1\r\n\r\n",),
    "another type": (encode([1, 2, 3]),),
    "unknown tag": (encode({"type": "Nobody"}),),
    "no fields": (encode({"type": "ECWant"}),),
    "an answer": (encode(Alive()),),
    "half a message": (encode(CONSUMERS[0])[:-9],),
    "more behind it": (encode(CONSUMERS[0]) + b"\0",),
    "two frames": (b"", encode(CONSUMERS[0])),
    "many frames": (b"a",) * 50,
    "a huge frame": (bytes(5 << 20),),
    "another version": (with_fields(KVWant("r", True), version=2),),
    "a wrong type": (with_fields(KVFetched(1, "r", 1), generation="1"),),
    "a huge name": (encode(ECWant(1, "a" * 5000, 1.0)),),
    "negative time": (encode(ECWant(1, "a", -1.0)),),
    "a number beyond all": (with_fields(ECDone(1, "a", 1), grant=b"\xff" * 16),),
}


def test_garbage_is_refused_and_counted(link: Link, intruder: RawConsumer) -> None:
    before = link.producer.refused
    for sent in GARBAGE.values():
        intruder.send(*sent)
    intruder.say(Heartbeat([]))
    assert answered(link, intruder) == Alive(), "who speaks sense is answered"
    assert link.producer.refused == before + len(GARBAGE)


def test_each_kind_of_nonsense_is_logged_once(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    with linked("shm", tmp_path_factory.mktemp("fresh")) as link:
        raw = RawConsumer(link.producer.node.server.port)
        with caplog.at_level(logging.WARNING):
            for _ in range(20):
                raw.send(b"noise")
                raw.send(*GARBAGE["another version"])
            link.until(lambda: link.producer.refused == 40)
        raw.close()
    assert len(caplog.records) == 2


def test_a_frame_beyond_all_bounds_ends_its_connection(link: Link, intruder: RawConsumer) -> None:
    intruder.send(bytes(17 << 20))
    link.works()


def test_a_flood_does_not_hold_up_a_poll(link: Link, intruder: RawConsumer) -> None:
    before = link.producer.refused
    for _ in range(3000):
        intruder.send(b"noise")
    link.until(lambda: link.producer.refused > before, link.producer)
    assert link.producer.refused < before + 3000, "one poll took all of it"
    link.works()
    link.until(lambda: link.producer.refused == before + 3000)


@settings(max_examples=60, deadline=None)
@given(st.lists(frames(), min_size=1, max_size=20))
def test_a_producer_goes_on_after_any_frames(link: Link, sent: list[list[bytes]]) -> None:
    """It neither raises nor stops answering, and nothing that was said by chance stays."""
    raw = RawConsumer(link.producer.node.server.port)
    for one in sent:
        raw.send(*one)
    raw.say(Heartbeat([]))
    link.until(lambda: isinstance(raw.heard(), Alive))
    raw.close()


def test_a_peer_that_does_not_speak_zmq_is_given_up_at_once(link: Link) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        ref = msgspec.structs.replace(link.offer([1]), host="127.0.0.1", port=port)
        load = link.consumer.kv.fetch(ref, 1)
        link.fails(load)
        thread.join()
    link.producer.kv.release(ref.request_id, "")
