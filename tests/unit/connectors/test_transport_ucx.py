"""What is particular to UCX: messages that make no sense, late data, scattered ranges."""

import signal
import sys
import time
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from connectors.transports.ucx import UcxTransport
from connectors.transports.ucx_wire import (
    BUNDLE,
    DATA,
    DIRECT,
    MAX_REASON,
    MAX_REQUEST,
    REFUSAL,
    REQUEST,
    Epochs,
    ReadRequest,
    UcxDescription,
    open_description,
    seal,
    tag,
)
from connectors.transports.ucx_worker import UcxWorker
from protocol.errors import ConfigError, TransferError, TransferTimeout
from tests.support.transport_harness import PeerProcess
from tests.support.transport_peer import pattern
from tests.support.ucx_local import BLOCK, BOUND_S, SIZE, UCX, Local, polling, start, until


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerProcess]:
    """A process whose region holds pattern 1."""
    process = start(tmp_path_factory.mktemp("ucx"), "peer", 1)
    yield process
    assert process.call("integrity") == []
    assert process.exit() == 0


@pytest.fixture
def local(peer: PeerProcess) -> Iterator[Local]:
    local = Local()
    local.transport.connect("peer", "kv", peer.describe("kv"))
    yield local
    until(lambda: local.transport.check_integrity() == [], local.transport)
    for _ in range(2):
        local.transport.close()


def bad_requests(reply: bytes) -> Iterator[bytes]:
    yield from (b"\0", b"garbage" * 40, bytes(MAX_REQUEST + 1))
    good = seal(ReadRequest(reply, 0, 1, "kv", [[(0, 8)]]))
    yield from (good[:-1], good[:20] + b"\xff" + good[21:], good[:12] + b"\x09" + good[13:])
    yield seal(UcxDescription(reply, "kv", 8, True))
    cases: tuple[tuple[str, int, list[list[tuple[int, int]]]], ...] = (
        ("none", 1, [[(0, 8)]]),
        ("kv", 1, [[(0, SIZE + 1)]]),
        ("kv", 1, [[(0, 8)], [(SIZE, 1)]]),
        ("kv", 1, [[(-1, 8)]]),
        ("kv", 1, [[(0, -8)]]),
        ("kv", 1, []),
        ("kv", 1, [[]]),
        ("kv", 1 << 60, [[(0, 8)]]),
        ("kv", 1, [[(0, BUNDLE), (0, BUNDLE)]]),
    )
    for region, transfer, messages in cases:
        yield seal(ReadRequest(reply, 0, transfer, region, messages))


@UCX
def test_bad_requests_are_refused(
    local: Local, peer: PeerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    local.bytes[:] = pattern(1, SIZE)
    stranger = UcxWorker("127.0.0.1")
    link = stranger.link(local.address)
    requests = list(bad_requests(stranger.address))
    for data in requests:
        stranger.send(link, data, tag(REQUEST), lambda _: None)
    for unasked in (tag(DATA, 5, 5), (1 << 64) - 1, 0):
        stranger.send(link, b"unasked", unasked, lambda _: None)

    def arrived() -> bool:
        stranger.progress()
        return (local.transport.refused, local.transport.late) == (len(requests) + 1, 2)

    until(arrived, local.transport)
    assert len(caplog.records) == 1
    stranger.close()
    peer.connect("local", "kv", local.transport.describe("kv"))
    with polling(local.transport):
        transfer = peer.call("read", peer="local", region="kv", ranges=[[0, 0, BLOCK]])
        assert peer.call("wait", transfer=transfer, timeout_s=BOUND_S)


@UCX
def test_owner_refuses_what_it_does_not_have(local: Local, peer: PeerProcess) -> None:
    honest = open_description(peer.describe("kv"))
    lie = msgspec.structs.replace(honest, nbytes=SIZE + 8)
    local.transport.connect("liar", "kv", seal(lie))
    local.fails(local.read("liar", (SIZE, 0, 8)), TransferError, "refused a read.*exceed")
    local.fetch("peer", (0, 0, BLOCK))


@UCX
def test_a_bundle_of_another_size_is_refused(local: Local, peer: PeerProcess) -> None:
    peer.signal(signal.SIGSTOP)
    read = local.read("peer", (0, 0, 8), (16, 16, 8))
    (transfer,) = local.transport._reader._reads
    stranger = UcxWorker("127.0.0.1")
    stranger.send(stranger.link(local.address), b"xyz", tag(DATA, transfer, 0), lambda _: None)
    deadline = time.monotonic() + BOUND_S
    with pytest.raises(TransferError, match="3 bytes arrived for"):
        while not read.poll():
            assert time.monotonic() < deadline
            stranger.progress()
            local.transport.poll()
    until(lambda: read.settled, local.transport)
    peer.signal(signal.SIGCONT)
    stranger.close()
    local.fetch("peer", (0, 0, 8), (16, 16, 8))


@UCX
@pytest.mark.parametrize(("size", "heard"), [(MAX_REASON, True), (MAX_REASON + 1, False)])
def test_a_reason_is_read_up_to_its_bound(
    local: Local, peer: PeerProcess, size: int, heard: bool
) -> None:
    peer.signal(signal.SIGSTOP)
    late = local.transport.late
    read = local.read("peer", (0, 0, 8))
    (transfer,) = local.transport._reader._reads
    sender = UcxWorker("127.0.0.1")
    refusal = tag(REFUSAL, transfer)
    sender.send(sender.link(local.address), b"x" * size, refusal, lambda _: None)

    def come() -> bool:
        sender.progress()
        told = local.transport._reader._reads[transfer].error is not None
        return told or local.transport.late > late

    try:
        until(come, local.transport)
        assert local.transport.late == late + (not heard)
        if heard:
            with pytest.raises(TransferError, match=f"refused a read: x{{{size}}}$"):
                read.poll()
    finally:
        peer.signal(signal.SIGCONT)
    read.cancel()
    until(lambda: read.settled, local.transport)
    sender.close()


@UCX
def test_a_region_may_have_one_byte_and_descriptors_last_until_the_end() -> None:
    transport = UcxTransport()
    assert transport.allocate("one", 1, "cpu").numel() == 1
    with pytest.raises(ConfigError, match=r"has no bytes \(0\)"):
        transport.allocate("none", 0, "cpu")
    (descriptor,) = transport.descriptors
    assert descriptor == transport._worker.descriptor
    transport.close()
    assert list(transport.descriptors) == []


@UCX
@pytest.mark.parametrize("ranges", [[(0, 0, BLOCK)], [(0, 0, 8), (16, 16, 8)]])
def test_a_request_that_cannot_leave(
    local: Local, monkeypatch: pytest.MonkeyPatch, ranges: list[tuple[int, int, int]]
) -> None:
    worker = local.transport._running
    with monkeypatch.context() as patch:
        patch.setattr(worker, "send", lambda *message: message[-1]("no way"))
        read = local.read("peer", *ranges)
        with pytest.raises(TransferError, match="instance peer cannot be asked: no way"):
            read.poll()
        assert read.settled
    local.fetch("peer", *ranges)


@UCX
def test_owner_that_does_not_poll(local: Local, peer: PeerProcess) -> None:
    local.bytes[:] = 7
    peer.connect("local", "kv", local.transport.describe("kv"))
    peer.call("patience", seconds=1.0)
    transfer = peer.call("read", peer="local", region="kv", ranges=[[0, 0, SIZE]])
    with pytest.raises(TransferTimeout, match="within 1 s"):
        peer.call("wait", transfer=transfer, timeout_s=BOUND_S)
    peer.call("patience", seconds=BOUND_S)
    with polling(local.transport):
        assert peer.call("settle", transfers=[transfer], timeout_s=BOUND_S)
        assert peer.call("wrong", region="kv", pieces=[(1, [[0, 0, SIZE]])]) == 0


@UCX
@pytest.mark.parametrize("size", [8, BLOCK, DIRECT, SIZE])
def test_late_data_does_not_land(
    local: Local, peer: PeerProcess, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The owner is not told that a read was given up, and sends all of it."""
    late, asked = local.transport.late, []
    local.fetch("peer", (SIZE - 8, SIZE - 8, 8))
    peer.signal(signal.SIGSTOP)
    given_up = local.read("peer", (0, 0, size))
    monkeypatch.setattr(given_up, "_ask", lambda *stop: asked.append(stop))
    given_up.cancel()
    until(lambda: given_up.settled, local.transport)
    peer.signal(signal.SIGCONT)
    until(lambda: local.transport.late == late + 1, local.transport)
    assert len(asked) == 1
    with pytest.raises(TransferError, match="cancelled"):
        given_up.poll()
    assert not local.bytes[:-8].any()
    assert (local.bytes[-8:] == pattern(1, SIZE)[-8:]).all()


@UCX
@pytest.mark.parametrize(("count", "size"), [(512, BLOCK), (5000, 1000), (20, DIRECT + 1)])
def test_scattered_ranges(local: Local, count: int, size: int) -> None:
    places = np.random.default_rng(0).permutation(SIZE // size)[:count].tolist()
    targets = sorted(places, key=lambda place: place * 7919 % 1009)
    ranges = [(s * size, t * size, size) for s, t in zip(places, targets, strict=True)]
    local.fetch("peer", *ranges)
    source, expected = pattern(1, SIZE), np.zeros(SIZE, np.uint8)
    for remote, target, n in ranges:
        expected[target : target + n] = source[remote : remote + n]
    assert (local.bytes == expected).all()


@UCX
def test_both_directions_at_once(local: Local, peer: PeerProcess) -> None:
    peer.connect("local", "kv", local.transport.describe("kv"))
    half = SIZE // 2
    local.bytes[:half] = pattern(1, SIZE)[:half]
    peer.send("hammer", peer="local", region="kv", ranges=[[0, 0, half]], timeout_s=1.0, least=2)
    rounds, deadline = 0, time.monotonic() + 1.5
    while rounds < 2 or time.monotonic() < deadline:
        local.fetch("peer", (half, half, half), (0, half, BLOCK))
        rounds += 1
    with polling(local.transport):
        assert peer.receive() > 1
    assert peer.wrong("kv", (1, [[0, 0, SIZE]])) == 0
    assert (local.bytes[half + BLOCK :] == pattern(1, SIZE)[half + BLOCK :]).all()


def test_peers_that_never_come_back_are_not_remembered_for_ever() -> None:
    """One that is forgotten, and comes back, still gets an epoch that is later than its last."""
    epochs = Epochs()
    assert epochs.begin(b"new", 0) == 0
    for number in range(5000):
        epochs.ended(number.to_bytes(4, "big"), number)
    assert len(epochs) <= 1024
    begun = [epochs.begin(number.to_bytes(4, "big"), 0) for number in range(5000)]
    assert all(epoch > number for number, epoch in enumerate(begun))
    assert begun[-1] == 5000 and epochs.begin(b"other", 9000) == 9000


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ucxx", "ucxx._lib", "ucxx._lib.libucxx"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install triptych\[ucx\]"):
        UcxTransport()


def test_host_that_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    with pytest.raises(ConfigError, match=r"192\.0\.2\.77"):
        UcxTransport("192.0.2.77")
