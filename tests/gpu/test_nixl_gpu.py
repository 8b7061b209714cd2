"""KV pools on a GPU that NIXL hands to peers as they are, without a copy through host memory."""

import pytest
import torch

from connectors.transports.base import Range, Transfer
from connectors.transports.nixl import NixlTransport
from tests.support.waiting import until

pytest.importorskip("nixl")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SIZE = 64 << 20


def test_memory_of_the_device_is_read_where_it_lies() -> None:
    owner, reader = NixlTransport("owner"), NixlTransport("reader")
    source, target = (one.allocate("kv", SIZE, "cuda") for one in (owner, reader))
    assert source.is_cuda and target.is_cuda
    reader.connect("owner", "kv", owner.describe("kv"))
    source.copy_(torch.arange(SIZE, device="cuda").to(torch.uint8))
    target.zero_()
    torch.cuda.synchronize()
    half = SIZE // 2
    transfer: Transfer = reader.read("owner", "kv", [Range(half, 0, half), Range(0, half, half)])
    until(lambda: (owner.poll(), reader.poll(), transfer.poll())[2])
    assert torch.equal(target[:half], source[half:])
    assert torch.equal(target[half:], source[:half])
    for transport in (owner, reader):
        transport.close()
