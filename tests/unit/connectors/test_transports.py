"""What every transport must do, between real processes."""

import random
import time
from collections.abc import Iterator

import pytest

from connectors.transports.shm import sweep
from protocol.errors import ConfigError, TransferError
from tests.support.transport_harness import KINDS, Network, PeerProcess, Ranges

BLOCK = 64 << 10
BOUND_S = 30.0


@pytest.fixture(scope="module", params=list(KINDS))
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    kind = KINDS[request.param]
    if not kind.installed:
        pytest.skip(f"{kind.package} is not installed")
    network = Network(kind)
    try:
        yield network
        for process in (network.reader, network.source):
            assert process.call("integrity") == []
    finally:
        statuses = network.end()
    assert set(statuses) == {0}
    sweep(network.directory)
    assert not network.directory.exists() or list(network.directory.iterdir()) == []
    network.remove()


@pytest.fixture
def reader(network: Network) -> PeerProcess:
    """Its memory is zeros; it is published only where a test says so."""
    network.reader.call("fill", region="kv", seed=0, publish=False)
    return network.reader


def whole(nbytes: int) -> Ranges:
    return [[0, 0, nbytes]]


def scattered(blocks: int) -> Ranges:
    """Blocks from random places to other random places, none of them twice."""
    places = range(Network.KV // BLOCK)
    chance = random.Random(7)
    pairs = zip(chance.sample(places, blocks), chance.sample(places, blocks), strict=True)
    return [[source * BLOCK, target * BLOCK, BLOCK] for source, target in pairs]


@pytest.mark.parametrize(
    "ranges",
    [
        whole(Network.KV),
        scattered(5),
        scattered(128),
        [[i * BLOCK, (i + 3) * BLOCK, BLOCK] for i in range(8)],
        [[1, 7, 1], [4097, 12_289, 65_537], [Network.KV - 3, 3, 3], [5, Network.KV - 1, 1]],
    ],
    ids=["whole", "few", "many", "adjacent", "unaligned"],
)
def test_read(network: Network, reader: PeerProcess, ranges: Ranges) -> None:
    reader.fetch(network.source, "kv", ranges)
    assert reader.wrong("kv", (1, ranges)) == 0


def test_two_regions_of_one_peer(network: Network, reader: PeerProcess) -> None:
    for process in (network.source, reader):
        assert process.call("allocate", region="ec", nbytes=Network.EC)
    network.source.call("fill", region="ec", seed=2)
    reader.join(network.source, "ec")
    kv, ec = scattered(20), whole(Network.EC)
    transfers = [
        reader.call("read", peer="source", region=region, ranges=ranges)
        for region, ranges in (("kv", kv), ("ec", ec), ("kv", kv))
    ]
    for transfer in transfers:
        assert reader.call("wait", transfer=transfer, timeout_s=BOUND_S)
    assert reader.wrong("kv", (1, kv)) == reader.wrong("ec", (2, ec)) == 0


def test_two_peers(network: Network, reader: PeerProcess) -> None:
    other = network.start("other", 3)
    reader.join(other, "kv")
    half = Network.KV // 2
    ours, theirs = [[0, 0, half]], [[0, half, half]]
    transfers = [
        reader.call("read", peer=peer, region="kv", ranges=ranges)
        for peer, ranges in (("source", ours), ("other", theirs))
    ]
    for transfer in transfers:
        assert reader.call("wait", transfer=transfer, timeout_s=BOUND_S)
    assert reader.wrong("kv", (1, ours), (3, theirs)) == 0
    reader.call("disconnect", peer="other")
    network.close(other)


@pytest.mark.parametrize(
    "bad",
    [
        [0, 0, Network.KV + 1],
        [Network.KV, 0, 1],
        [0, Network.KV, 1],
        [-1, 0, 8],
        [0, -8, 8],
        [0, 0, 0],
        [0, 0, -4],
        [1 << 62, 0, 1 << 62],
    ],
)
def test_bad_range_is_refused(network: Network, reader: PeerProcess, bad: list[int]) -> None:
    with pytest.raises(TransferError):
        reader.call("read", peer="source", region="kv", ranges=[[0, 0, BLOCK], bad])
    assert reader.wrong("kv") == 0


def test_unknown_peer_is_refused(network: Network, reader: PeerProcess) -> None:
    with pytest.raises(TransferError, match="nobody"):
        reader.call("read", peer="nobody", region="kv", ranges=whole(8))


def test_garbage_description_is_refused(network: Network, reader: PeerProcess) -> None:
    good = network.source.describe("kv")
    damaged = [good[:i] + bytes([good[i] ^ 0x10]) + good[i + 1 :] for i in range(0, len(good), 7)]
    for description in (b"", b"garbage", good[:-1], good[: len(good) // 2], b"\0" * 64, *damaged):
        with pytest.raises(TransferError):
            reader.connect("fraud", "kv", description)
    with pytest.raises(TransferError):
        reader.call("read", peer="fraud", region="kv", ranges=whole(8))
    reader.fetch(network.source, "kv", whole(BLOCK))


def test_disconnected_peer_can_come_back(network: Network, reader: PeerProcess) -> None:
    for _ in range(3):
        reader.call("disconnect", peer="source")
        reader.call("disconnect", peer="source")
        with pytest.raises(TransferError):
            reader.call("read", peer="source", region="kv", ranges=whole(8))
        reader.join(network.source, "kv")
        reader.fetch(network.source, "kv", whole(BLOCK))
    reader.fetch(network.source, "kv", scattered(128))
    assert reader.wrong("kv", (1, [*whole(BLOCK), *scattered(128)])) == 0


def test_peers_that_read_each_other(network: Network, reader: PeerProcess) -> None:
    """Also once one of them has let go of the other and has come back."""
    mirror = network.start("mirror", 2)
    reader.call("fill", region="kv", seed=3)
    half = Network.KV // 2
    for gone, back in ((reader, mirror), (mirror, reader), (reader, mirror)):
        reader.join(mirror, "kv")
        mirror.join(reader, "kv")
        reader.fetch(mirror, "kv", [[0, half, half]])
        mirror.fetch(reader, "kv", [[0, half, half]])
        gone.call("disconnect", peer=back.instance_id)
        back.fetch(gone, "kv", [[BLOCK, half + BLOCK, half // 2]])
        with pytest.raises(TransferError):
            gone.call("read", peer=back.instance_id, region="kv", ranges=whole(8))
    reader.call("fill", region="kv", seed=0)
    reader.join(mirror, "kv")
    reader.fetch(mirror, "kv", whole(half))
    assert reader.wrong("kv", (2, whole(half))) == 0
    reader.call("disconnect", peer="mirror")
    network.close(mirror)


def test_restarted_peer_replaces_its_former_process(network: Network, reader: PeerProcess) -> None:
    for seed in (4, 5):
        phoenix = network.start("phoenix", seed)
        reader.join(phoenix, "kv")
        reader.join(phoenix, "kv")
        reader.fetch(phoenix, "kv", scattered(10))
        assert reader.wrong("kv", (seed, scattered(10))) == 0
        network.kill(phoenix)
    reader.call("disconnect", peer="phoenix")


def test_read_from_a_dead_peer_ends(network: Network, reader: PeerProcess) -> None:
    victim = network.start("victim", 6)
    reader.join(victim, "kv")
    reader.fetch(victim, "kv", whole(BLOCK))
    network.kill(victim)
    ends_in_time(network, victim, scattered(40), reads_s=0.0)
    reader.fetch(network.source, "kv", whole(BLOCK))


def test_peer_that_dies_while_it_is_read(network: Network, reader: PeerProcess) -> None:
    victim = network.start("victim", 7)
    reader.join(victim, "kv")
    ends_in_time(network, victim, whole(Network.KV), reads_s=0.3)
    reader.fetch(network.source, "kv", whole(BLOCK))


def ends_in_time(network: Network, victim: PeerProcess, ranges: Ranges, reads_s: float) -> None:
    """Reads of a process that is killed after `reads_s` fail soon, unless its memory is left."""
    outlives = network.kind.outlives
    hammer_s = 2 * reads_s if outlives else 2 * BOUND_S
    network.reader.send(
        "hammer", peer="victim", region="kv", ranges=ranges, timeout_s=hammer_s, least=3
    )
    if reads_s:
        time.sleep(reads_s)
        network.kill(victim)
    killed = time.monotonic()
    if outlives:
        assert network.reader.receive() > 0
    else:
        with pytest.raises(TransferError):
            network.reader.receive()
    assert time.monotonic() - killed < BOUND_S
    network.reader.call("disconnect", peer="victim")
    while network.reader.call("integrity"):
        assert time.monotonic() - killed < BOUND_S


def test_cancelled_read_settles(network: Network, reader: PeerProcess) -> None:
    transfers = []
    for _ in range(4):
        transfer = reader.call("read", peer="source", region="kv", ranges=scattered(128))
        reader.call("cancel", transfer=transfer)
        transfers.append(transfer)
    assert reader.call("settle", transfers=transfers, timeout_s=BOUND_S)
    reader.call("fill", region="kv", seed=0, publish=False)
    assert reader.wrong("kv") == 0
    reader.fetch(network.source, "kv", scattered(5))
    assert reader.wrong("kv", (1, scattered(5))) == 0
    assert reader.call("integrity") == []


def test_region_that_exists_or_cannot_be_is_refused(reader: PeerProcess) -> None:
    for region, nbytes, device in (("kv", 8, "cpu"), ("none", 0, "cpu"), ("gpu", 8, "meta")):
        with pytest.raises(ConfigError):
            reader.call("allocate", region=region, nbytes=nbytes, device=device)


def test_closing_twice(network: Network, reader: PeerProcess) -> None:
    short = network.start("short", 8)
    short.join(network.source, "kv")
    short.fetch(network.source, "kv", whole(BLOCK))
    short.call("read", peer="source", region="kv", ranges=whole(Network.KV))
    for _ in range(2):
        short.call("close")
    assert short.call("integrity") == []
    network.close(short)
    reader.fetch(network.source, "kv", whole(BLOCK))
