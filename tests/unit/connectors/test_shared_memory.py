"""Memory that is handed over by descriptor: which peer may have it, and what none can do to it."""

import contextlib
import gc
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from connectors.config import namespace_dir
from connectors.host_memory import RESERVE, MemoryBudget
from connectors.owners import make_private
from connectors.transports.base import Range
from connectors.transports.descriptor_passing import _short
from connectors.transports.shared_memory import SharedMemory, map_for_reading
from connectors.transports.shm import ShmTransport
from protocol.errors import ConfigError, TransferError
from tests.conftest import Pass
from tests.support.aside import on_small_disk
from tests.support.shared_regions import allocated_bytes
from tests.support.shortage import no_files_left
from tests.support.waiting import until

SIZE = 1 << 20
REMEDY = "use another one"


@pytest.fixture(params=["memfd", "file"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions lie in a memfd, or in a nameless file where there is no such thing."""
    if request.param == "file":
        monkeypatch.delattr(os, "memfd_create")


@pytest.fixture
def pair(memory: None, tmp_path: Path) -> Iterator[tuple[ShmTransport, ShmTransport]]:
    """An owner and a reader in a folder whose name is longer than a socket's address may be."""
    folder = tmp_path / ("x" * 120)
    owner, reader = ShmTransport(folder, "owner"), ShmTransport(folder, "reader")
    yield owner, reader
    for transport in (owner, reader):
        assert transport.check_integrity() == []
        transport.close()
    assert list(folder.iterdir()) == []


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket at `path`, however long its name, that answers no peer by itself."""
    with socket.socket(socket.AF_UNIX) as listener:
        with _short(path) as name:
            listener.bind(name)
        listener.listen()
        yield listener
    path.unlink()


def renamed(description: bytes, name: str) -> bytes:
    """A region's description with the name of another socket."""
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(description), "name": name})


def connect(owner: ShmTransport, reader: ShmTransport, region: str) -> None:
    connecting = reader.connect("owner", region, owner.describe(region))
    until(lambda: connecting is None or connecting.poll())


def test_a_region_is_read_while_its_owner_computes(
    pair: tuple[ShmTransport, ShmTransport],
) -> None:
    """Nothing polls the owner from the handshake to the last byte."""
    owner, reader = pair
    ours = owner.allocate("kv", SIZE, "cpu")
    theirs = reader.allocate("kv", SIZE, "cpu")
    ours[:] = torch.arange(SIZE, dtype=torch.int64).to(torch.uint8)
    connect(owner, reader, "kv")
    assert reader.read("owner", "kv", [Range(3, 5, SIZE - 5)]).poll()
    assert torch.equal(theirs[5:], ours[3:-2]) and not theirs[:5].any()


def test_a_peer_that_no_read_waits_for_any_more_is_forgotten(
    pair: tuple[ShmTransport, ShmTransport],
) -> None:
    """Or its answer would keep the engine's loop awake for good."""
    owner, reader = pair
    owner.allocate("kv", SIZE, "cpu")
    region, description = owner._regions["kv"], owner.describe("kv")
    with listening(reader.folder / "region-late") as late:
        description = renamed(description, "region-late")
        connecting = reader.connect("owner", "kv", description)
        assert connecting is not None and len(reader.descriptors) == 1
        peer, _ = late.accept()
        with peer:
            socket.send_fds(peer, [b"\0"], [region.memory.descriptor])
    until(lambda: (reader.poll(), not reader.descriptors)[1])
    assert connecting.settled and reader.view("owner", "kv", 0, 8).numel() == 8


def test_a_reader_cannot_write(pair: tuple[ShmTransport, ShmTransport]) -> None:
    owner, reader = pair
    owner.allocate("kv", SIZE, "cpu")
    connect(owner, reader, "kv")
    with pytest.raises(ValueError, match="read-only"):
        reader._peers["owner", "kv"].view[0] = 1


def test_a_memfd_cannot_be_cut_shorter() -> None:
    region = SharedMemory(SIZE, MemoryBudget(), sparse=True, granule=0)
    for size in (0, 2 * SIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(region.descriptor, size)
    region.close()


def test_memory_that_its_owner_could_cut_shorter_is_not_mapped() -> None:
    descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SIZE)
    with pytest.raises(TransferError, match="truncation"):
        map_for_reading(descriptor, SIZE)
    with pytest.raises(TransferError, match=f"has {SIZE} bytes"):
        map_for_reading(descriptor, SIZE + 1)
    os.close(descriptor)


def test_what_is_discarded_gives_its_memory_back(memory: None) -> None:
    region = SharedMemory(SIZE * 8, MemoryBudget(), sparse=True, granule=0)
    assert allocated_bytes(region) == 0
    region.commit(SIZE, 2 * SIZE)
    region.view[SIZE : 3 * SIZE] = 7
    assert allocated_bytes(region) == 2 * SIZE
    region.discard(SIZE, SIZE)
    assert allocated_bytes(region) == SIZE and not region.view[SIZE : 2 * SIZE].any()
    region.commit(SIZE, SIZE)
    assert allocated_bytes(region) == 2 * SIZE
    region.close()


def test_what_cannot_be_discarded_stays_and_is_used_again(memory: None) -> None:
    region = SharedMemory(SIZE * 8, MemoryBudget(), sparse=True, granule=0)
    region.commit(SIZE, 2 * SIZE)
    with no_files_left():
        region.discard(SIZE, SIZE)
        assert allocated_bytes(region) == 2 * SIZE
        region.commit(SIZE, SIZE)
    assert region._committed.sum() == 2
    region.discard(SIZE, SIZE)
    assert allocated_bytes(region) == SIZE and region._committed.sum() == 1
    region.close()


def test_memory_that_is_not_free_is_refused_before_the_kernel_kills() -> None:
    budget = MemoryBudget(lambda: RESERVE + 2 * SIZE)
    with pytest.raises(ConfigError, match=f"cannot allocate {4 * SIZE} bytes"):
        SharedMemory(4 * SIZE, budget, sparse=False, granule=0)
    region = SharedMemory(64 * SIZE, budget, sparse=True, granule=0)
    region.commit(0, SIZE)
    with pytest.raises(TransferError, match=f"cannot allocate {3 * SIZE} bytes"):
        region.commit(8 * SIZE, 3 * SIZE)
    region.commit(8 * SIZE, SIZE)
    region.close()


def test_an_owner_that_does_not_answer_keeps_no_reader_waiting(
    pair: tuple[ShmTransport, ShmTransport], passes: Pass
) -> None:
    """It is stopped, say: the kernel takes the connection, and nothing comes."""
    owner, reader = pair
    owner.allocate("kv", SIZE, "cpu")
    with listening(reader.folder / "region-silent"):
        description = renamed(owner.describe("kv"), "region-silent")
        connecting = reader.connect("owner", "kv", description)
        assert connecting is not None and not connecting.poll() and len(reader.descriptors) == 1
        with pytest.raises(TransferError, match="not connected"):
            reader.view("owner", "kv", 0, 8)
        passes(6.0)
        with pytest.raises(TransferError, match="did not answer within"):
            connecting.poll()
    assert reader.check_integrity() == [] and not reader.descriptors


def test_a_connection_that_is_given_up_never_succeeds(
    pair: tuple[ShmTransport, ShmTransport],
) -> None:
    owner, reader = pair
    owner.allocate("kv", SIZE, "cpu")
    with listening(reader.folder / "region-silent"):
        description = renamed(owner.describe("kv"), "region-silent")
        connecting = reader.connect("owner", "kv", description)
        assert connecting is not None
        connecting.cancel()
        with pytest.raises(TransferError, match="cancelled"):
            connecting.poll()
    assert connecting.settled and not reader.descriptors


def regions_open() -> int:
    """Descriptors of regions in this process. A mapping keeps one of its own until it is
    collected."""
    gc.collect()
    links = Path("/proc/self/fd").iterdir()
    return sum("memfd:triptych" in os.path.realpath(link) for link in links)


def test_a_folder_without_room_for_a_socket_leaves_no_descriptor(tmp_path: Path) -> None:
    transport = ShmTransport(tmp_path / "shm", "me")
    before = regions_open()
    (tmp_path / "shm").rmdir()
    with pytest.raises(ConfigError):
        transport.allocate("kv", SIZE, "cpu")
    assert regions_open() <= before
    transport.close()


def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, open_to_all, link = tmp_path / "ours", tmp_path / "open", tmp_path / "link"
    make_private(ours, REMEDY)
    assert ours.stat().st_mode & 0o777 == 0o700
    make_private(ours, REMEDY)
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    link.symlink_to(ours)
    for folder, reason in ((open_to_all, "other users can write"), (link, "not a folder")):
        with pytest.raises(ConfigError, match=reason):
            make_private(folder, REMEDY)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match=REMEDY):
        make_private(ours, REMEDY)


@pytest.mark.parametrize("nbytes", [1, 4095, 4097])
def test_memory_of_any_size_is_mapped(memory: None, nbytes: int) -> None:
    shared = SharedMemory(nbytes, MemoryBudget(), sparse=False, granule=0)
    shared.view[:] = 7
    descriptor = shared.reader_descriptor()
    tensor, _ = map_for_reading(descriptor, nbytes)
    assert tensor.tolist() == [7] * nbytes
    for wrong in (nbytes + 1, 0):
        with pytest.raises(TransferError, match="its description says"):
            map_for_reading(descriptor, wrong)
    os.close(descriptor)
    shared.close()


def hold_much() -> int:
    transport = ShmTransport(namespace_dir(f"test-{uuid.uuid4().hex}"), "me")
    held = int(transport.allocate("kv", 64 << 20, "cpu").fill_(1).sum())
    transport.close()
    transport.folder.rmdir()
    return held


def test_a_small_dev_shm_limits_nothing() -> None:
    """As in a container, whose /dev/shm has 64 MB by default: 1 MB here, for a pool of 64 MB."""
    assert on_small_disk(Path("/dev/shm"), "1m", hold_much) == 64 << 20
