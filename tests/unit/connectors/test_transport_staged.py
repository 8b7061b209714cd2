"""Memory that peers cannot read, copied through memory that they can; see test_transports too."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
import torch

from connectors.transports.base import Range, Transfer
from connectors.transports.shm import ShmTransport
from connectors.transports.staged import StagedTransport
from protocol.errors import ConfigError, TransferError
from tests.support.shared_regions import committed_bytes
from tests.support.waiting import until

GRANULE, COUNT = 96 << 10, 32
SIZE = GRANULE * COUNT


class Side:
    """One instance."""

    def __init__(self, folder: Path, name: str) -> None:
        self._shm = ShmTransport(folder, name)
        self.transport = StagedTransport(self._shm, everything=True)
        self.memory = self.transport.allocate("kv", SIZE, "cpu", granule=GRANULE)

    def mirrored(self) -> int:
        """Bytes of memory that the mirror takes."""
        return committed_bytes(self._shm, "kv")

    def done(self, transfer: Transfer | None) -> None:
        assert transfer is not None
        until(lambda: (self.transport.poll(), transfer.poll())[1])

    def offer(self, *granules: int) -> None:
        self.done(self.transport.offer("kv", pieces(*granules)))

    def release(self, *granules: int) -> None:
        self.transport.release("kv", pieces(*granules))
        until(lambda: (self.transport.poll(), not self.transport.check_integrity())[1])


def pieces(*granules: int) -> list[tuple[int, int]]:
    return [(number * GRANULE, GRANULE) for number in granules]


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    folder = tmp_path / "shm"
    owner, reader = Side(folder, "owner"), Side(folder, "reader")
    owner.memory[:] = torch.randint(1, 256, (SIZE,), dtype=torch.uint8)
    connecting = reader.transport.connect("owner", "kv", owner.transport.describe("kv"))
    until(lambda: connecting is None or connecting.poll())
    yield owner, reader
    for side in (owner, reader):
        assert side.transport.check_integrity() == []
        side.transport.close()
    folder.rmdir()


def test_its_events_are_those_of_what_it_copies_through(sides: tuple[Side, Side]) -> None:
    for side in sides:
        inner = side.transport._inner
        assert list(side.transport.descriptors) == list(inner.descriptors)
        assert side.transport.arm() == inner.arm()
        assert side.transport.refused == inner.refused == 0


def test_memory_is_taken_for_what_is_on_its_way_only(sides: tuple[Side, Side]) -> None:
    owner, reader = sides
    assert owner.mirrored() == reader.mirrored() == 0
    for _ in range(2):
        reader.memory.zero_()
        owner.offer(*range(COUNT))
        assert owner.mirrored() >= SIZE
        reader.done(reader.transport.read("owner", "kv", [Range(0, 0, SIZE)]))
        assert torch.equal(reader.memory, owner.memory)
        owner.release(*range(COUNT))
        assert owner.mirrored() == reader.mirrored() == 0


def test_what_is_given_back_leaves_its_neighbours(sides: tuple[Side, Side]) -> None:
    owner, reader = sides
    owner.offer(*range(COUNT))
    owner.release(*range(0, COUNT, 2))
    kept = range(1, COUNT, 2)
    ranges = [Range(n * GRANULE, n * GRANULE, GRANULE) for n in kept]
    reader.done(reader.transport.read("owner", "kv", ranges))
    for number in kept:
        (piece,) = (slice(at, at + size) for at, size in pieces(number))
        assert torch.equal(reader.memory[piece], owner.memory[piece])
    owner.release(*kept)


def test_a_reader_keeps_what_it_publishes_itself(sides: tuple[Side, Side]) -> None:
    owner, reader = sides
    reader.memory[:] = 7
    reader.offer(1, 3)
    owner.offer(*range(COUNT))
    before = reader.transport._regions["kv"].mirror[GRANULE : 2 * GRANULE].clone()
    whole = [Range(0, 0, GRANULE), Range(2 * GRANULE, 2 * GRANULE, GRANULE)]
    reader.done(reader.transport.read("owner", "kv", whole))
    assert torch.equal(reader.transport._regions["kv"].mirror[GRANULE : 2 * GRANULE], before)
    assert bool((before == 7).all())
    reader.release(1, 3)
    owner.release(*range(COUNT))


def test_a_transfer_that_is_given_up_settles_once_its_copy_is_over(
    sides: tuple[Side, Side],
) -> None:
    owner, reader = sides
    owner.offer(0)
    go_on = Event()
    reader.transport._copier.submit(go_on.wait)
    transfer = reader.transport.read("owner", "kv", [Range(0, 0, GRANULE)])
    until(lambda: (reader.transport.poll(), len(reader.transport._under_way) == 1)[1])
    assert not transfer.poll() and not transfer.settled
    transfer.cancel()
    with pytest.raises(TransferError, match="cancelled"):
        transfer.poll()
    go_on.set()
    until(lambda: (reader.transport.poll(), transfer.settled)[1])
    assert reader.transport.check_integrity() == []
    owner.release(0)


def test_what_lands_where_blocks_were_released_outlives_their_discard(
    sides: tuple[Side, Side],
) -> None:
    """The discard waits behind the copier; the blocks are used anew at once."""
    owner, reader = sides
    owner.offer(0)
    reader.offer(0)
    earlier, between = Event(), Event()
    reader.transport._copier.submit(earlier.wait)
    reader.transport.release("kv", pieces(0))
    reader.transport._copier.submit(between.wait)
    transfer = reader.transport.read("owner", "kv", [Range(0, 0, GRANULE)])
    earlier.set()
    until(lambda: (reader.transport.poll(), len(reader.transport._under_way) == 1)[1])
    between.set()
    reader.done(transfer)
    assert torch.equal(reader.memory[:GRANULE], owner.memory[:GRANULE])
    owner.release(0)


def test_what_lands_where_a_copy_out_still_runs_is_not_written_over(
    sides: tuple[Side, Side],
) -> None:
    owner, reader = sides
    owner.offer(0)
    reader.memory[:] = 7
    go_on = Event()
    reader.transport._copier.submit(go_on.wait)
    reader.transport.offer("kv", pieces(0))
    reader.transport.release("kv", pieces(0))
    transfer = reader.transport.read("owner", "kv", [Range(0, 0, GRANULE)])
    go_on.set()
    reader.done(transfer)
    assert torch.equal(reader.memory[:GRANULE], owner.memory[:GRANULE])
    owner.release(0)


def test_a_read_that_has_settled_takes_nothing_from_the_next(sides: tuple[Side, Side]) -> None:
    owner, reader = sides
    owner.offer(0)
    go_on = Event()
    reader.transport._copier.submit(go_on.wait)
    given_up = reader.transport.read("owner", "kv", [Range(0, 0, GRANULE)])
    given_up.cancel()
    until(lambda: given_up.settled)
    transfer = reader.transport.read("owner", "kv", [Range(0, 0, GRANULE)])
    reader.transport.poll()
    go_on.set()
    reader.done(transfer)
    assert torch.equal(reader.memory[:GRANULE], owner.memory[:GRANULE])
    owner.release(0)


def test_no_room_for_the_mirror_is_told(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, reader = sides

    def full(*_: object) -> None:
        raise TransferError("no room")

    owner.offer(0)
    with monkeypatch.context() as patched:
        patched.setattr(ShmTransport, "commit", full)
        transfer = owner.transport.offer("kv", pieces(1))
        assert transfer is not None
        with pytest.raises(TransferError, match="no room"):
            transfer.poll()
        with pytest.raises(TransferError, match="no room"):
            reader.transport.read("owner", "kv", [Range(0, 0, GRANULE)])
    owner.release(0, 1)
    assert owner.mirrored() == reader.mirrored() == 0


def test_a_copy_that_fails_is_told(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, _ = sides

    def broken(*_: object) -> None:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patched:
        patched.setattr("connectors.transports.staged._move", broken)
        transfer = owner.transport.offer("kv", pieces(0))
        assert transfer is not None
        with pytest.raises(TransferError, match="out of luck"):
            owner.done(transfer)
    owner.release(0)


def test_a_peer_that_is_not_connected_is_not_read(sides: tuple[Side, Side]) -> None:
    _, reader = sides
    for peer, ranges in (("nobody", [Range(0, 0, 8)]), ("owner", [Range(0, SIZE - 4, 8)])):
        with pytest.raises(TransferError):
            reader.transport.read(peer, "kv", ranges)
    assert reader.transport.check_integrity() == []


def test_memory_without_contents_is_refused(sides: tuple[Side, Side]) -> None:
    with pytest.raises(ConfigError, match="meta"):
        sides[0].transport.allocate("other", SIZE, "meta")
