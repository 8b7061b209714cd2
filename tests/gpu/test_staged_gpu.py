"""KV pools on a GPU over a transport that cannot hand their memory to peers."""

from pathlib import Path

import pytest
import torch

from connectors.transports.base import Range, Transfer
from connectors.transports.shm import ShmTransport
from connectors.transports.staged import StagedTransport
from tests.support.waiting import until

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GRANULE, COUNT = 1 << 20, 64
SIZE = GRANULE * COUNT


def done(transport: StagedTransport, transfer: Transfer | None) -> None:
    assert transfer is not None
    until(lambda: (transport.poll(), transfer.poll())[1])


def test_what_was_computed_last_arrives(tmp_path: Path) -> None:
    """The copy out waits for the computing before it, and computing after the copy in sees it."""
    folder = tmp_path / "shm"
    owner, reader = (StagedTransport(ShmTransport(folder, name)) for name in ("owner", "reader"))
    source, target = (t.allocate("kv", SIZE, "cuda", granule=GRANULE) for t in (owner, reader))
    assert source.is_cuda and target.is_cuda
    connecting = reader.connect("owner", "kv", owner.describe("kv"))
    until(lambda: connecting is None or connecting.poll())
    pieces = [(number * GRANULE, GRANULE) for number in range(COUNT)]
    for turn in range(1, 5):
        work = torch.full((SIZE,), turn, dtype=torch.uint8, device="cuda")
        for _ in range(50):
            work = work.roll(1)
        source.copy_(work)
        done(owner, owner.offer("kv", pieces))
        done(reader, reader.read("owner", "kv", [Range(0, 0, SIZE)]))
        assert int(target.to(torch.int64).sum()) == turn * SIZE
        owner.release("kv", pieces)
        until(lambda: (owner.poll(), not owner.check_integrity())[1])
    for transport in (owner, reader):
        transport.close()
    folder.rmdir()
