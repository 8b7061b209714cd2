"""KV on its way down, with real stores: what comes at once, and what a tier must not lose."""

import contextlib
import threading
from pathlib import Path

import pytest
import torch

from connectors.tiers.files import FileStore
from connectors.tiers.host import HostStore
from services.engine.scheduling.idle_blocks import IdleBlocks
from services.engine.transfers.tier_offloads import Tier, TierOffloads
from services.engine.transfers.tier_shelf import TierShelf

BLOCKS = 300


def offloaded(path: Path, slots: int) -> tuple[TierOffloads, list[Tier]]:
    """BLOCKS become idle at once, above so many slots of host memory and files for all."""
    pool = torch.arange(BLOCKS * 4, dtype=torch.float32).view(BLOCKS, 4)
    host = HostStore(pool, slots, "--kv-host-memory")
    files = FileStore(path, host.memory, pool, BLOCKS, "test")
    idle = IdleBlocks()
    tiers = [Tier(store, TierShelf(store.capacity)) for store in (host, files)]
    offloads = TierOffloads(tiers, idle, lambda: 0.0, None)
    with contextlib.closing(host), contextlib.closing(files):
        for block in range(BLOCKS):
            idle.add(block, block.to_bytes(32))
        for _ in range(10_000):
            offloads.advance()
            if not offloads.active:
                break
            threading.Event().wait(0.001)
    return offloads, tiers


@pytest.mark.parametrize("slots", [10, 64, 100, 256])
def test_a_burst_passes_through_a_small_tier_whole(slots: int, tmp_path: Path) -> None:
    offloads, (host, disk) = offloaded(tmp_path, slots)
    assert disk.offloaded == len(list(tmp_path.rglob("*.kv"))) == BLOCKS
    assert (len(host.shelf), offloads.dropped) == (slots, 0)


def test_what_is_lost_between_tiers_is_counted(tmp_path: Path) -> None:
    """A tier that is worth something by itself takes what is new, whether the disk is behind."""
    offloads, (host, disk) = offloaded(tmp_path, 280)
    assert host.offloaded == BLOCKS
    assert disk.offloaded + offloads.dropped == BLOCKS
