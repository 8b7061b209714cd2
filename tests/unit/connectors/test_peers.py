"""Handshakes with producers that answer, are silent, or cannot be reached."""

import math
import time
from typing import Any

import pytest

from connectors.messages import Hello, Refused, Welcome
from connectors.peers import Identity, Peers
from connectors.side_client import Address
from protocol.errors import IncompatiblePeer, TransferError, TransferTimeout

HERE: Address = ("127.0.0.1", 7)
THERE: Address = ("127.0.0.1", 8)


class Client:
    """Stands where the side channel's client does; its answers are what a test says."""

    def __init__(self) -> None:
        self.handlers: dict[type, Any] = {}
        self.sent: list[tuple[Address, Hello]] = []
        self.unreachable: set[Address] = set()
        self.forgotten: list[Address] = []
        self.sends = True
        self.now_computing = -math.inf

    @property
    def listened_s(self) -> float:
        return time.monotonic()

    def on(self, kind: type, handler: Any) -> None:
        self.handlers[kind] = handler

    def send(self, address: Address, message: Hello) -> bool:
        self.sent.append((address, message))
        return self.sends

    def connection_number(self, address: Address) -> int:
        return 1

    def broken(self, address: Address) -> bool:
        return address in self.unreachable

    def computing(self, address: Address) -> tuple[float, None]:
        return self.now_computing, None

    def forget(self, address: Address) -> None:
        self.forgotten.append(address)

    def gone(self) -> list[Address]:
        return []

    def answer(self, instance: str = "producer") -> None:
        """To the last question."""
        address, hello = self.sent[-1]
        self.handlers[Welcome](address, Welcome(hello.query, instance, b""))


class Transport:
    name = "shm"

    def connect(self, peer: str, region: str, description: bytes) -> None:
        pass

    def disconnect(self, peer: str) -> None:
        pass


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, as its only entry."""
    clock = [50.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    return clock


@pytest.fixture
def peers(client: Client, now: list[float]) -> Peers:
    identity = Identity("consumer", expects={"kv": "layout"})
    return Peers(client, Transport(), identity, timeout_s=5.0)  # type: ignore[arg-type]


def test_a_peer_is_ready_once_it_has_answered(client: Client, peers: Peers) -> None:
    assert peers.ready(HERE, "kv") is None
    assert client.sent == [(HERE, Hello(0, "consumer", "shm", "kv", "layout"))]
    client.answer()
    assert peers.ready(HERE, "kv") == "producer"
    assert len(client.sent) == 1


def test_a_silent_peer_is_given_up_after_the_time_limit(
    client: Client, peers: Peers, now: list[float]
) -> None:
    assert peers.ready(HERE, "kv") is None
    now[0] += 4.9
    assert peers.ready(HERE, "kv") is None
    now[0] += 0.2
    with pytest.raises(TransferTimeout, match=r"127\.0\.0\.1:7 did not answer the handshake"):
        peers.ready(HERE, "kv")
    assert client.forgotten == [HERE]
    assert peers.ready(HERE, "kv") is None, "the next call asks again"
    assert len(client.sent) == 2


def test_one_that_computes_has_more_time(client: Client, peers: Peers, now: list[float]) -> None:
    assert peers.ready(HERE, "kv") is None
    now[0] += 6.0
    client.now_computing = now[0] - 1.0
    assert peers.ready(HERE, "kv") is None


def test_a_peer_that_cannot_be_reached(client: Client, peers: Peers) -> None:
    client.unreachable = {HERE}
    with pytest.raises(TransferError, match=r"cannot connect to 127\.0\.0\.1:7"):
        peers.ready(HERE, "kv")


def test_a_question_that_cannot_be_sent(client: Client, peers: Peers) -> None:
    client.sends = False
    with pytest.raises(TransferError, match=r"cannot send to 127\.0\.0\.1:7"):
        peers.ready(HERE, "kv")


def test_an_answer_outlasts_the_time_limit_and_a_connection_that_breaks(
    client: Client, peers: Peers, now: list[float]
) -> None:
    """What is wrong then is seen by its reads."""
    peers.ready(HERE, "kv")
    client.answer()
    now[0] += 100.0
    client.unreachable = {HERE}
    assert peers.ready(HERE, "kv") == "producer"


def test_a_refusal_is_the_error_of_the_region_that_was_asked_for(
    client: Client, peers: Peers
) -> None:
    peers.ready(HERE, "kv")
    query = client.sent[-1][1].query
    assert peers.ready(HERE, "ec") is None
    assert peers.ready(THERE, "kv") is None
    client.handlers[Refused](HERE, Refused(query, "another layout"))
    with pytest.raises(IncompatiblePeer, match="another layout"):
        peers.ready(HERE, "kv")
    assert client.forgotten == [], "the connection is used for the other region"
    assert peers.ready(HERE, "ec") is None and peers.ready(THERE, "kv") is None
    assert sorted(peers.known("ec") + peers.known("kv")) == [HERE, THERE]
