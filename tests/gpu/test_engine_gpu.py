"""The engine on a GPU: transformers' tokens with graphs, fused kernels and without; nothing is
compiled for a request; memory stays within its share."""

from typing import Any

import numpy as np
import pytest
import torch

from services.engine.attention import triton_kernels
from services.engine.engine import Engine
from services.engine.model import fused_kernels
from services.engine.model.step_upload import upload
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking, picture, picture_cases, text_cases
from tests.support.engines import engine, request_of, run
from tests.support.reference import reference_generate
from tests.support.tiny_models import FAMILIES, TEXT_FAMILIES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = "cuda"
TOKENS = 12
WAYS: dict[str, dict[str, Any]] = {
    "graphs and fused": {},
    "graphs": {"fused_kernels": False},
    "fused": {"enforce_eager": True},
    "neither": {"enforce_eager": True, "fused_kernels": False},
}
KERNELS = (
    triton_kernels.decode_kernel,
    triton_kernels.merge_kernel,
    triton_kernels.prefill_kernel,
    triton_kernels.write_kernel,
    fused_kernels.norm_kernel,
    fused_kernels.rotary_kernel,
    fused_kernels.silu_kernel,
)


def on_gpu(path: Any, **options: Any) -> Engine:
    return engine(path, device=DEVICE, block_size=16, **options)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_equals_generate(
    family: str, way: dict[str, Any], model_dir: ModelDir
) -> None:
    path = model_dir(family)
    cases = text_cases() if family in TEXT_FAMILIES else picture_cases()
    expected = [reference_generate(path, case, TOKENS, ignore_eos=True) for case in cases]
    worker = on_gpu(path, max_num_batched_tokens=96, max_num_seqs=8, **way)
    requests = [
        request_of(path, case, f"r{i}", max_tokens=TOKENS, ignore_eos=True)
        for i, case in enumerate(cases)
    ]
    tokens = run(worker, requests)
    assert [tokens[f"r{i}", 0] for i in range(len(cases))] == expected
    assert worker.check_integrity() == []
    worker.close()


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.9}])
@pytest.mark.parametrize("count", [1, 3, 8, 9])
def test_graphs_give_the_tokens_of_eager_steps(
    count: int, sampling: dict[str, Any], model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_dir("qwen2_5_vl")
    replays: list[object] = []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(
        torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(graph), replay(graph))[1]
    )
    tokens = []
    for eager in (True, False):
        requests = [
            request_of(
                path, asking(f"{i} {LONG}"), f"r{i}", max_tokens=20 + 5 * i, ignore_eos=True,
                seed=i, **sampling,
            )
            for i in range(count)
        ]  # fmt: skip
        worker = on_gpu(path, max_num_seqs=9, prefix_caching=False, enforce_eager=eager)
        tokens.append(run(worker, requests))
        assert (len(replays) > 10) == (not eager)
        worker.close()
    assert tokens[0] == tokens[1]


def compiled() -> list[int]:
    """How many variants of each kernel there are."""
    return [len(kernel.device_caches[0][0]) for kernel in KERNELS]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_no_request_pays_for_a_compilation(family: str, model_dir: ModelDir) -> None:
    path = model_dir(family)
    worker = on_gpu(path, num_blocks=600, max_model_len=8000)
    before = compiled()
    assert sum(before) > 6
    cases = [asking(picture(1), "What?"), asking(LONG), asking(LONG * 8), asking(LONG * 50)]
    requests = [
        request_of(path, case, f"r{i}", max_tokens=4 + 3 * i, ignore_eos=True)
        for i, case in enumerate(cases)
    ]
    run(worker, requests)
    assert compiled() == before
    worker.close()


def test_memory_stays_within_its_share(model_dir: ModelDir) -> None:
    """Of weights, KV cache and all that the largest steps take."""
    path = model_dir("qwen2_5_vl")
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    share = (total - free) / total + 0.2
    worker = on_gpu(path, num_blocks=0, gpu_memory_utilization=share, enforce_eager=True)
    blocks = worker.ready().num_blocks
    assert blocks * worker.layout.block_bytes(4) > 0.1 * total
    cases = [asking(picture(i, 1120, 1120), f"{i} {LONG}") for i in range(8)]
    requests = [request_of(path, case, f"r{i}", max_tokens=4) for i, case in enumerate(cases)]
    run(worker, requests)
    free, _ = torch.cuda.mem_get_info()
    assert total - free <= share * total
    worker.close()


def test_the_integers_of_a_step_wait_for_no_kernel() -> None:
    """They move while the device is busy, and arrive as they were although the host goes on."""

    device = torch.device(DEVICE)
    busy = torch.ones(1 << 24, device=device)
    for _ in range(200):
        busy = busy.roll(1)
    sent = [
        upload({"a": np.full(5000, turn), "b": np.arange(7, dtype=np.int32)}, device)
        for turn in range(50)
    ]
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    assert not done.query(), "the host waited for the device"  # type: ignore[no-untyped-call]
    for turn, tensors in enumerate(sent):
        assert bool((tensors["a"] == turn).all())
        assert tensors["b"].tolist() == list(range(7))
