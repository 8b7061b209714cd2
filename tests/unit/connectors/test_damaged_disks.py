"""Shared storage that is damaged or full."""

import os
import tempfile
from pathlib import Path

import msgspec
import pytest
import torch
from blake3 import blake3

from connectors.base import EC_TENSOR, Entry
from connectors.ec.arena import ArenaEC
from connectors.tiers.files import disk_bytes
from connectors.transports.files import FilesTransport
from protocol.errors import TransferError
from tests.support.aside import on_small_disk
from tests.support.links import Link, linked


def damage(path: Path, how: str) -> None:
    if how == "deleted":
        path.unlink()
        return
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data if how == "flipped" else data[: len(data) // 2])


@pytest.mark.parametrize("how", ["deleted", "flipped", "truncated"])
def test_blocks_that_are_damaged_on_disk_are_refused(tmp_path: Path, how: str) -> None:
    with linked("shared_storage", tmp_path) as link:
        ref = link.offer([1, 2])
        load = link.consumer.kv.fetch(ref, 2)
        link.until(lambda: load.poll() or load.fed)
        (block,) = tmp_path.glob(".regions-*/kv/2")
        damage(block, how)
        load.place(0, [0, 1])
        link.fails(load)
        link.until(lambda: ref.request_id in link.producer.ended)
        link.works()


def test_a_region_in_a_folder_that_cannot_be_looked_at_is_a_failed_handshake(
    tmp_path: Path,
) -> None:
    """A peer may name any."""
    transport = FilesTransport(tmp_path)
    body = msgspec.msgpack.encode(
        {"folder": f".regions-{'x' * 300}/kv", "nbytes": 4096, "granule": 4096}
    )
    with pytest.raises(TransferError, match="cannot be looked at: File name too long"):
        transport.connect("peer", "kv", blake3(body).digest() + body)
    transport.close()


def fill(folder: Path) -> str:
    """What was refused and why. Without memfd regions are files in TMPDIR, which is `folder`."""
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
    del os.memfd_create
    link = Link("shm", folder / "shm")
    ec = link.producer.ec
    assert isinstance(ec, ArenaEC)
    large = {EC_TENSOR: torch.zeros(60, 64)}
    held, refused = {}, "nothing"
    try:
        for name in "abcd":
            held[name] = ec.offer(name, Entry(large, ("r",)))
    except TransferError as error:
        refused = error.message
    for name, params in held.items():
        link.consumer.ec.release(name, params, "r")
    link.until(lambda: ec.clear() or not ec.store.size)
    link.works()
    link.close()
    return refused


def test_a_full_file_system_fails_one_entry_only(tmp_path: Path) -> None:
    """A tmpfs with room for the pools and most of an embedding store."""
    refused = on_small_disk(tmp_path, "72k", fill, tmp_path)
    assert refused.startswith("shm: cannot allocate"), refused


@pytest.mark.parametrize(("block", "taken"), [(1, 4096), (4064, 4096), (4065, 8192), (9000, 12288)])
def test_a_block_takes_whole_pages_of_a_disk_with_its_checksum(block: int, taken: int) -> None:
    assert disk_bytes(block) == taken
