"""The folder of KV blocks that an engine has on disk."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from connectors.tiers.base import TierCopy
from connectors.tiers.files import FileStore
from protocol.errors import ConfigError

BLOCKS, ELEMENTS = 4, 32
BOUND_S = 20.0


class Disk:
    """A store between host memory of drawn numbers and a pool of zeros."""

    def __init__(self, path: Path, capacity: int = BLOCKS) -> None:
        self.host = torch.rand(BLOCKS, ELEMENTS)
        self.pool = torch.zeros(BLOCKS, ELEMENTS)
        self.store = FileStore(path, self.host, self.pool, capacity, "model")

    def save(self, *rows: int) -> list[bool]:
        return ended(self.store.save(rows, [key(row) for row in rows], rows))

    def load(self, *rows: int) -> list[bool]:
        return ended(self.store.load([key(row) for row in rows], rows, rows))


def key(row: int) -> bytes:
    return row.to_bytes(32)


def ended(copy: TierCopy) -> list[bool]:
    deadline = time.monotonic() + BOUND_S
    while (result := copy.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return list(result.whole)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    with contextlib.closing(disk.store):
        yield disk


def test_blocks_come_back_as_they_were(disk: Disk) -> None:
    assert disk.save(1, 2) == disk.load(1, 2) == [True, True]
    assert torch.equal(disk.pool[1:3], disk.host[1:3])
    assert not disk.pool[[0, 3]].any()


def test_what_is_removed_is_gone_and_may_be_removed_again(disk: Disk) -> None:
    disk.save(0, 1)
    for _ in range(2):
        disk.store.remove([key(0)])
    assert disk.save(2) == [True], "writes and removals come one after the other"
    assert disk.load(0, 1, 2) == [False, True, True]


def test_a_folder_belongs_to_one_store_until_that_is_closed(disk: Disk, tmp_path: Path) -> None:
    disk.save(3)
    with pytest.raises(ConfigError, match="is used by another worker"):
        Disk(tmp_path)
    for _ in range(2):
        disk.store.close()
    again = Disk(tmp_path)
    with contextlib.closing(again.store):
        assert again.store.kept() == [key(3)]
        assert again.load(3) == [True]
        assert torch.equal(again.pool[3], disk.host[3])
