"""On a GPU KV is announced only once it is written: who reads it on another stream at that moment,
as a peer's network card does, reads what the step computed."""

from pathlib import Path

import pytest
import torch

from connectors.config import KVConfig
from connectors.transports.staged import StagedTransport
from services.engine.model.step_upload import fence_on
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking
from tests.support.engines import engine, request_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SIZE = 1 << 24


def busy(turns: int = 200) -> torch.Tensor:
    """Work that keeps the current stream busy for a while."""
    work = torch.ones(SIZE, device="cuda")
    for _ in range(turns):
        work = work.roll(1)
    return work


def test_a_fence_passes_behind_the_work_before_it() -> None:
    target = torch.zeros(SIZE, device="cuda")
    torch.cuda.synchronize()
    target.copy_(busy())
    fence = fence_on("cuda")
    assert fence is not None
    assert not fence.passed(), "the call returned before the device was done"
    while not fence.passed():
        pass
    other = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(other):
        assert bool((target == 1).all())


def test_blocks_are_whole_when_they_are_announced(
    model_dir: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_dir("qwen3")
    kv = KVConfig(transport="shm", path=str(tmp_path / "shm"), lease_s=30.0, timeout_s=5.0)
    worker = engine(
        model, parts=("language",), kv=kv, num_blocks=64, device="cuda", max_num_batched_tokens=16
    )
    core = worker.generate
    assert core is not None and worker.kv is not None
    request, _ = request_of(model, asking(f"{LONG} {LONG}"), "r", max_tokens=2, ignore_eos=True)
    request.kv_transfer_params = {"do_remote_decode": True}
    pool = core._runs._runner._cache.pool  # type: ignore[attr-defined]
    other = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    seen: dict[int, torch.Tensor] = {}
    producer = worker.kv.producer  # type: ignore[attr-defined]
    announce = producer.advance

    def read_at_once(request_id: str, blocks: list[int]) -> None:
        with torch.cuda.stream(other):
            for block in blocks:
                seen.setdefault(block, pool[block].cpu())
        announce(request_id, blocks)

    monkeypatch.setattr(producer, "advance", read_at_once)
    # As a direct transport has it: a staged one would copy behind the kernels by itself.
    monkeypatch.setattr(StagedTransport, "offer", lambda *_: None)
    run = core._runs._runner.run
    monkeypatch.setattr(core._runs._runner, "run", lambda chunks: (busy(), run(chunks))[1])
    assert core.add(request) == []
    while not any(output.finish_reason for output in worker.step()[0]):
        pass
    torch.cuda.synchronize()
    for _ in range(3):
        worker.serve_peers()
    assert len(seen) > 2
    assert all(torch.equal(content, pool[block].cpu()) for block, content in seen.items())
    core.abort(["r"])
    core.transfers.offers.close()
    worker.close()
