"""The Triton kernels on a GPU against the PyTorch reference, at the sizes of real models."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from protocol.refs import KVGroup, KVLayout
from services.engine.attention.batch import AttentionBackend, PagedBatch
from services.engine.attention.kv_cache import KVCache, block_elements
from services.engine.attention.kv_codes import FP8, INT8
from services.engine.attention.paged import backend_for
from services.engine.attention.torch_attention import TorchAttention
from services.engine.attention.triton_backend import TritonAttention
from tests.support.paged_cases import LAYER, Case, Step, check, make

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MIXED: dict[str, Any] = {
    "queries": (1, 700, 1, 33, 1, 512),
    "contexts": (5000, 3000, 1, 33, 777, 512),
}
LENGTHS = (1, 15, 16, 17, 128, 129, 1000, 8191, 20000)
DECODE: dict[str, Any] = {"queries": (1,) * len(LENGTHS), "contexts": LENGTHS}
SPANS = ((0, 1100, 1356), (0, 1500, 1756), (2, 600, 856))
MEDIA: dict[str, Any] = {"queries": (900, 1, 300), "contexts": (1800, 900, 900), "spans": SPANS}


def _sizes(group: int, kv_heads: int, dim: int) -> dict[str, Any]:
    return {"group": group, "kv_heads": kv_heads, "k_dim": dim, "v_dim": dim, "block_size": 16}


MODELS = {
    "qwen2.5-vl-7b": _sizes(7, 4, 128),
    "one group": _sizes(1, 4, 64),
    "wide": _sizes(2, 2, 256),
    "padded": _sizes(4, 2, 80),
    "one kv head": _sizes(32, 1, 128),
    "very wide": _sizes(4, 1, 512),
}
CASES = [
    Case(f"{name}, {kind}, {dtype}", **step, **sizes, dtype=dtype)
    for name, sizes in MODELS.items()
    for kind, step in {"mixed": MIXED, "decode": DECODE}.items()
    for dtype in ("float32", "bfloat16", "float16")
]
FEATURES = [
    replace(case, name=f"{case.name}, {dtype}", dtype=dtype)
    for dtype in ("float32", "bfloat16")
    for case in (
        Case("keys wider than values", **MIXED, k_dim=192, v_dim=128, block_size=16),
        Case("window", **MIXED, **_sizes(4, 2, 128), window=500),
        Case("window, decode", **DECODE, **_sizes(4, 2, 128), window=500),
        Case("spans", **MEDIA, **_sizes(2, 2, 128)),
        Case("spans of other layers", **MEDIA, **_sizes(2, 2, 128), windowed_spans=True),
        Case("spans and window", **MEDIA, **_sizes(2, 2, 256), window=128),
        Case("softcap and window", **MIXED, **_sizes(2, 2, 256), softcap=50.0, window=1024),
        Case("sinks and window", **MIXED, **_sizes(8, 2, 64), sinks=True, window=128),
        Case("sinks, decode", **DECODE, **_sizes(8, 2, 64), sinks=True),
        Case("everything", **MEDIA, **_sizes(2, 2, 80), window=128, softcap=30.0, sinks=True),
    )
]

CODES = [
    replace(case, name=f"{case.name}, {codes}", codes=codes)
    for codes in (INT8, FP8)
    for case in FEATURES
]


@pytest.mark.parametrize("case", CASES + FEATURES + CODES, ids=lambda case: case.name)
def test_equals_the_reference(case: Case) -> None:
    check(case, backend_for(torch.device("cuda")), "cuda")


@pytest.mark.parametrize("longest", [300, 20000])
def test_a_captured_decode_follows_its_tensors(longest: int) -> None:
    """Captured with contexts up to `longest`, replayed with others, in other blocks."""
    case = Case("decode", **DECODE, **_sizes(7, 4, 128), dtype="bfloat16")
    step = make(case, "cuda")
    expected = _attend(backend_for(torch.device("cuda")), step, step.batch)
    backend = replace(TritonAttention.for_device(torch.device("cuda")), captured=True)
    bounds = replace(
        step.batch,
        context_lens=[longest] * len(LENGTHS),
        block_tables=torch.zeros_like(step.batch.block_tables),
    )
    bounds.contexts_tensor.fill_(1)
    _attend(backend, step, bounds)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = _attend(backend, step, bounds)
    bounds.contexts_tensor.copy_(step.batch.contexts_tensor)
    bounds.block_tables.copy_(step.batch.block_tables)
    graph.replay()
    torch.testing.assert_close(output, expected, atol=1e-2, rtol=1e-2)


def _attend(backend: AttentionBackend, step: Step, batch: PagedBatch) -> torch.Tensor:
    return backend.attend(step.query, LAYER, batch, 0.1, None, None)


def test_a_pool_of_more_elements_than_an_int32_counts() -> None:
    """The same blocks at the start of a small pool and at the end of a large one."""
    layout = KVLayout((KVGroup((LAYER,), 8, 128, 128),), 16, "bfloat16")
    blocks = 2**31 // block_elements(layout) + 64
    if torch.cuda.mem_get_info()[0] < 3 * blocks * layout.block_bytes(2):
        pytest.skip("too little free memory")
    device = torch.device("cuda")
    contexts = [40, 300]
    outputs = []
    for first in (0, blocks - 32):
        torch.manual_seed(0)
        cache = KVCache(
            layout,
            torch.empty(first + 32, block_elements(layout), dtype=torch.bfloat16, device=device),
        )
        tables = torch.zeros(2, 19, dtype=torch.int64)
        tables[0, :3] = torch.arange(first, first + 3)
        tables[1] = torch.arange(first + 3, first + 22)
        owner = torch.tensor([0] * 40 + [1] * 300)
        positions = torch.cat([torch.arange(context) for context in contexts])
        batch = PagedBatch(
            cache,
            tables[owner, positions // 16].to(device),
            (positions % 16).to(device),
            tables.to(device),
            [0, 40, 340],
            contexts,
            positions.to(device),
        )
        key, value = torch.randn(2, 8, 340, 128, dtype=torch.bfloat16, device=device)
        query = torch.randn(16, 340, 128, dtype=torch.bfloat16, device=device)
        backend = backend_for(device)
        backend.write(key, value, LAYER, batch)
        last = replace(batch, query_starts=[0, 1, 2], positions=positions[[39, 339]].to(device))
        outputs.append(backend.attend(query, LAYER, batch, 0.1, None, None))
        outputs.append(backend.attend(query[:, [39, 339]], LAYER, last, 0.1, None, None))
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(outputs[1], outputs[3])
    reference = TorchAttention().attend(query, LAYER, batch, 0.1, None, None)
    torch.testing.assert_close(outputs[2], reference, atol=2e-2, rtol=2e-2)
