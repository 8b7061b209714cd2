"""Stores of embeddings in a folder."""

import time
from pathlib import Path

import torch

from connectors.base import Changed, Entry, Tensors, no_listener
from connectors.ec.files import FileEC, FileStoreOptions
from tests.support.forked import die

SIZE = 4096


def store(
    root: Path,
    *,
    count: int = 4,
    lease_s: float = 30.0,
    load_s: float = 30.0,
    unchecked: bool = False,
    changed: Changed = no_listener,
) -> FileEC:
    """Room for `count` entries."""
    options = FileStoreOptions(root, count * (SIZE + 300), load_s, lease_s, unchecked)
    return FileEC(options, changed)


def entry(seed: int, *holders: str) -> Entry:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(16, SIZE // 64, generator=generator)
    return Entry({"ec_cache": rows, "deepstack_00": rows.bfloat16()[:1]}, holders)


def arrived(ec: FileEC, name: str) -> Tensors:
    load = ec.fetch(name, None)
    while (tensors := load.poll()) is None:
        time.sleep(0.001)
    return tensors


def die_holding(root: Path) -> None:
    """A writer of two entries that is killed: nothing of it is cleaned up."""
    ec = store(root)
    ec.offer("a", entry(1))
    ec.offer("b", entry(2))
    die()
