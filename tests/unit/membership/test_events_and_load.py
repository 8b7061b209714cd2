"""A worker among masters: its addresses and its event sockets."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import zmq

from protocol.errors import ConfigError
from protocol.event_frames import SNAPSHOT, end_frames, event_frames, parse_frames, replay_request
from protocol.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    EventBatch,
    EventSource,
    decode_event_batch,
)
from services.engine.publishing import EventThread
from services.master.events.follower import Follower
from services.membership.config import advertised_url, parse_events, reachable

WAIT_S = 10.0


def test_events_configuration_is_vllms() -> None:
    assert parse_events("", "127.0.0.1", default=False) is None
    ours = parse_events("", "0.0.0.0", default=True)
    assert ours is not None and ours.endpoint == "tcp://*:0"
    text = """{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557",
               "replay_endpoint": null, "buffer_steps": 7, "hwm": 9, "topic": "t"}"""
    given = parse_events(text, "127.0.0.1", default=False)
    assert given is not None
    blocks, embeddings = given.blocks(), given.embeddings()
    assert (blocks.endpoint, blocks.replay) == ("tcp://*:5557", "tcp://127.0.0.1:0")
    assert (blocks.topic, blocks.buffer_steps, blocks.hwm) == ("t", 7, 9)
    assert (embeddings.endpoint, embeddings.topic) == ("tcp://127.0.0.1:0", "ec-events")
    assert parse_events('{"enable_kv_cache_events": false}', "h", default=True) is None
    assert parse_events('{"publisher": "null"}', "h", default=True) is None


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"publisher": "kafka"}', '{"hwm": 0}', '{"hwm": "x"}', '{"port": 1}']
)
def test_bad_events_configuration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_events(text, "127.0.0.1", default=True)


def test_a_worker_says_where_it_can_be_reached() -> None:
    assert advertised_url("", "10.0.0.1", 80, []) == "http://10.0.0.1:80"
    assert advertised_url("http://w.example/", "0.0.0.0", 80, []) == "http://w.example"
    assert advertised_url("", "0.0.0.0", 80, ["http://127.0.0.1:7000"]) == "http://127.0.0.1:80"
    assert advertised_url("", "::1", 80, []) == "http://[::1]:80"
    sources = [EventSource("tcp://0.0.0.0:5", "tcp://127.0.0.1:6", "t"), EventSource("ipc://x")]
    assert reachable(sources, "h") == [
        EventSource("tcp://h:5", "tcp://127.0.0.1:6", "t"), EventSource("ipc://x"),
    ]  # fmt: skip
    for bad in ("ftp://a", "a:80"):
        with pytest.raises(ConfigError):
            advertised_url(bad, "h", 1, [])


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(0)


def answers(context: zmq.Context[Any], source: EventSource, start: int) -> list[tuple[int, bytes]]:
    dealer = context.socket(zmq.DEALER)
    dealer.connect(source.replay)
    dealer.send_multipart(replay_request(start))
    found: list[Any] = []
    while True:
        assert dealer.poll(WAIT_S * 1e3)
        message = parse_frames(dealer.recv_multipart())
        if message is None:
            dealer.close(0)
            return found
        found.append(message)


class Sink:
    """What a master would believe."""

    def __init__(self) -> None:
        self.names: set[Any] = set()

    def apply(self, batch: EventBatch) -> None:
        for event in batch.events:
            if isinstance(event, BlockStored):
                self.names.update(event.block_hashes)

    def forget(self, *, blocks: bool) -> None:
        self.names.clear()


def names_in(events: Sequence[CacheEvent]) -> set[Any]:
    stored = [event for event in events if isinstance(event, BlockStored)]
    return {name for event in stored for name in event.block_hashes}


def test_a_block_in_two_tiers_stays_in_the_one_that_keeps_it(context: zmq.Context[Any]) -> None:
    config = parse_events("", "127.0.0.1", default=True)
    assert config is not None
    thread = EventThread(config.blocks(), None)
    (source,) = thread.sources
    try:
        for medium in ("GPU", "CPU"):
            thread.hand(([BlockStored([1, 2], medium=medium)], []))
        thread.hand(([BlockRemoved([1, 2], "GPU"), BlockRemoved([2], "CPU")], []))
        told: list[CacheEvent] = []
        deadline = time.monotonic() + WAIT_S
        while told != [AllBlocksCleared(), BlockStored([1], medium="CPU")]:
            assert time.monotonic() < deadline, told
            pieces = answers(context, source, SNAPSHOT)
            told = [e for _, piece in pieces for e in decode_event_batch(piece).events]
    finally:
        thread.close()


def stored(first: int, count: int) -> BlockStored:
    return BlockStored(list(range(first, first + count)), None, [1] * count, 1)


def test_a_large_state_comes_in_pieces_and_a_bounded_buffer_forgets(
    context: zmq.Context[Any],
) -> None:
    config = parse_events('{"buffer_steps": 3}', "127.0.0.1", default=True)
    assert config is not None
    thread = EventThread(config.blocks(), None)
    (source,) = thread.sources
    try:
        assert answers(context, source, SNAPSHOT) == [], "nothing has been said"
        for step in range(5):
            thread.hand(([stored(step * 1000, 1000)], []))
        thread.hand(([BlockRemoved([3, 4])], []))
        whole: list[CacheEvent] = []
        deadline = time.monotonic() + WAIT_S
        while names_in(whole) != set(range(5000)) - {3, 4}:
            assert time.monotonic() < deadline
            pieces = answers(context, source, SNAPSHOT)
            whole = [e for _, piece in pieces for e in decode_event_batch(piece).events]
        assert {sequence for sequence, _ in pieces} == {5} and len(pieces) == 5
        told = [e for e in whole if isinstance(e, BlockStored)]
        assert not any(e.token_ids for e in told), "names alone"
        assert {e.block_size for e in told} == {1}
        assert isinstance(whole[0], AllBlocksCleared)
        sink = Sink()
        follower = Follower(sink, lambda start: None, Counter())
        for sequence, piece in pieces:
            follower.replayed(event_frames("", sequence, piece))
        follower.replayed(end_frames())
        assert not follower.waiting and sink.names == set(range(5000)) - {3, 4}
        assert [sequence for sequence, _ in answers(context, source, 0)] == [3, 4, 5]
    finally:
        thread.close()


def test_a_thread_that_cannot_keep_up_takes_everything_back(context: zmq.Context[Any]) -> None:
    config = parse_events("", "127.0.0.1", default=True)
    assert config is not None
    thread = EventThread(config.blocks(), None, max_steps=2)
    (source,) = thread.sources
    publish, busy, go_on = thread._publisher.publish, threading.Event(), threading.Event()

    def slow(kv: Sequence[CacheEvent], ec: Sequence[CacheEvent]) -> None:
        busy.set()
        assert go_on.wait(WAIT_S)
        publish(kv, ec)

    thread._publisher.publish = slow  # type: ignore[method-assign]
    try:
        thread.hand(([stored(0, 10)], []))
        assert busy.wait(WAIT_S)
        for step in range(1, 4):
            thread.hand(([stored(step * 10, 10)], []))
        thread.hand(([stored(500, 1)], []))
        go_on.set()
        deadline = time.monotonic() + WAIT_S
        while len(said := answers(context, source, 0)) < 3:
            assert time.monotonic() < deadline
        events = [e for _, payload in said for e in decode_event_batch(payload).events]
        assert events[1] == AllBlocksCleared(), "what steps 1 to 3 said is not known to be true"
        assert [e.block_hashes[0] for e in events if isinstance(e, BlockStored)] == [0, 500]
    finally:
        go_on.set()
        thread.close()


def test_an_address_that_is_taken_is_a_configuration_error(context: zmq.Context[Any]) -> None:
    taken = context.socket(zmq.PUB)
    port = taken.bind_to_random_port("tcp://127.0.0.1")
    text = f'{{"endpoint": "tcp://127.0.0.1:{port}"}}'
    config = parse_events(text, "127.0.0.1", default=True)
    assert config is not None
    with pytest.raises(ConfigError, match="cannot publish"):
        EventThread(config.blocks(), config.embeddings())
