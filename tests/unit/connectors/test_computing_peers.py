"""A producer that computes a step says so and is waited for; one that is stopped is given up."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.config import ECConfig, KVConfig
from connectors.factory import Connectors
from connectors.kv.base import KVLoad
from connectors.messages import Alive, Heartbeat, Hello, KVFetched, Welcome
from connectors.side_client import SideClient
from connectors.side_server import SideServer
from protocol.errors import TransferTimeout
from tests.conftest import Pass
from tests.support.links import Link, linked
from tests.support.raw_peers import RawConsumer, RawProducer

OWN_STEP_S = 25.0
BOUND_S = 30.0
PEER = """
from connectors.side_server import SideServer
import sys, time
server = SideServer("127.0.0.1", 0)
print(server.port, flush=True)
while sys.stdin:
    server.poll()
    time.sleep(0.01)
"""


@pytest.fixture
def link(transport: str, tmp_path: Path) -> Iterator[Link]:
    with linked(transport, tmp_path, lease_s=60.0) as link:
        yield link


def computing(link: Link, load: KVLoad, passes: Pass) -> None:
    """The producer computes for longer than it may be silent, and the fetch goes on."""
    client, peer = link.consumer.node.client, link.producer.node.address
    with link.producer.node.meanwhile():
        for _ in range(6):
            before, _ = client.computing(peer)
            passes(4.0)
            until(
                lambda before=before: client.computing(peer)[0] > before,
                link.consumer.poll,
                load.poll,
            )
            assert load.poll() is None


@pytest.mark.parametrize(
    ("transport", "when"),
    [("shm", "handshake"), ("shm", "growing"), ("shm", "confirming"), ("nixl", "growing"),
     ("ucx", "growing")],
)  # fmt: skip
def test_a_producer_that_computes_is_not_silent(link: Link, when: str, passes: Pass) -> None:
    load = waiting(link, when)
    computing(link, load, passes)
    load.place(0, [0, 3])
    assert link.copied(load).num_tokens == 32
    assert link.consumer.pool[[0, 3]].equal(link.producer.pool[[1, 2]])


def waiting(link: Link, when: str) -> KVLoad:
    """A fetch that waits for its producer."""
    link.works()
    if when == "handshake":
        link.consumer.node.peers.lost(link.producer.node.address)
    ref = link.offer([1, 2])
    load = link.consumer.kv.fetch(ref, 2)
    if when != "growing":
        load.place(0, [0, 3])
    if when == "confirming":
        said = link.consumer.node.client.send
        asked: list[bool] = []

        def noted(peer: tuple[str, int], message: object) -> bool:
            asked.append(isinstance(message, KVFetched))
            return said(peer, message)  # type: ignore[arg-type]

        link.consumer.node.client.send = noted  # type: ignore[method-assign]
        until(lambda: any(asked), link.producer.poll, link.consumer.poll, load.poll)
    return load


def own_step(link: Link, passes: Pass) -> None:
    """One of the consumer's engine, which is longer than a producer may be silent."""
    passes(OWN_STEP_S)
    link.consumer.poll()


@pytest.mark.parametrize("when", ["handshake", "growing", "confirming"])
def test_a_long_step_of_ones_own_is_no_silence_of_a_producer(
    tmp_path: Path, passes: Pass, when: str
) -> None:
    with linked("shm", tmp_path, lease_s=60.0) as link:
        load = waiting(link, when)
        if when == "growing":
            link.until(lambda: load.poll() or load.fed)
        assert load.poll() is None
        own_step(link, passes)
        assert load.poll() is None
        load.place(0, [0, 3])
        assert link.copied(load).num_tokens == 32
        assert link.consumer.pool[[0, 3]].equal(link.producer.pool[[1, 2]])


def test_a_producer_that_answers_outlasts_any_number_of_long_steps(
    tmp_path: Path, passes: Pass
) -> None:
    """One question leaves in each poll between two of them."""
    with linked("shm", tmp_path, lease_s=60.0) as link:
        load = waiting(link, "growing")
        link.until(lambda: load.poll() or load.fed)
        client = link.consumer.node.client
        for _ in range(10):
            own_step(link, passes)
            assert load.poll() is None
            until(lambda: any(one.poll(0) for one in client.sockets), link.producer.poll)
        load.place(0, [0, 3])
        assert link.copied(load).num_tokens == 32


def test_a_silent_producer_is_given_up_after_some_long_steps(tmp_path: Path, passes: Pass) -> None:
    with linked("shm", tmp_path) as link:
        producer = RawProducer(link.producer.node)
        load = link.consumer.kv.fetch(producer.ref("r", 16), 1)
        link.until(lambda: load.poll() or producer.took("KVWant"))
        with pytest.raises(TransferTimeout, match="kv_timeout"):
            for _ in range(5):
                own_step(link, passes)
                assert load.poll() is None
        load.cancel()
        producer.close()


def test_a_pause_counts_up_to_a_bound_and_time_between_polls_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    client = SideClient(most_pause_s=5.0)
    begun = client.listened_s
    for seconds in (3.0, 4.0, 100.0):
        now[0] += seconds
        client.poll()
    assert client.listened_s - begun == pytest.approx(12.0)
    client.close()


def until(done: Callable[[], bool], *work: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not done():
        assert time.monotonic() < deadline
        for one in work:
            one()
        time.sleep(0.001)


def test_what_is_asked_during_a_step_is_served_after_it_in_order() -> None:
    server = SideServer("127.0.0.1", 0)
    served: list[int] = []
    server.on(Hello, lambda message, _: served.append(message.query))
    raw = RawConsumer(server.port)
    try:
        for query in (1, 2):
            raw.say(Hello(query, "i", "shm", "kv", ""))
        raw.send(b"nonsense")
        raw.say(Heartbeat([]))
        heard: list[object] = []

        def hear() -> None:
            heard.append(raw.heard())

        until(lambda: Alive(7.0) in heard, lambda: server.say_computing(7.0), hear)
        assert served == [] and server.refused == 0
        server.on(Heartbeat, lambda _, sender: sender(Alive()))
        server.poll()
        assert served == [1, 2] and server.refused == 1
        until(lambda: Alive() in heard, hear)
    finally:
        raw.close()
        server.close()


def test_an_engine_does_not_sleep_on_what_was_asked_during_a_step(tmp_path: Path) -> None:
    """The socket is empty by then: nothing would wake the engine."""
    connectors = Connectors(ECConfig("shm", path=str(tmp_path)), KVConfig())
    ec = connectors.make_ec("model", produces=True)
    port = ec.endpoint()["peer_port"]
    raw = RawConsumer(port)
    try:
        raw.say(Hello(1, "i", "shm", "ec", "model"))
        raw.say(Heartbeat([]))
        heard: list[object] = []
        with connectors.meanwhile():
            until(lambda: any(isinstance(one, Alive) for one in heard),
                  lambda: heard.append(raw.heard()))  # fmt: skip
        assert not connectors.arm()
        ec.poll()
        until(lambda: any(isinstance(one, Welcome) for one in heard),
              lambda: heard.append(raw.heard()))  # fmt: skip
        assert connectors.arm()
    finally:
        raw.close()
        ec.close()


def test_a_stopped_process_is_noticed_and_is_back_once_it_goes_on() -> None:
    """Its kernel goes on taking what is sent."""
    process = subprocess.Popen(
        [sys.executable, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    client = SideClient()
    try:
        assert process.stdout is not None
        peer = ("127.0.0.1", int(process.stdout.readline()))
        assert client.send(peer, Heartbeat([]))
        number = client.connection_number(peer)
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: client.broken(peer), client.poll)
        assert client.connection_number(peer) != number
        os.kill(process.pid, signal.SIGCONT)
        until(lambda: not client.broken(peer), client.poll)
    finally:
        client.close()
        process.kill()
        process.wait()
