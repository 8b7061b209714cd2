"""The Triton kernels in Triton's interpreter, on the CPU, against the PyTorch reference.

Not collected by itself: `tests/unit/engine/test_interpreted_kernels.py` runs it with
TRITON_INTERPRET=1 in a process of its own, since kernels are made for the interpreter or for a
device on import.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder

from services.engine.attention.kv_codes import FP8, INT8
from services.engine.attention.paged import paged_attention
from services.engine.attention.torch_attention import TorchAttention
from services.engine.attention.triton_backend import TritonAttention
from services.engine.attention.triton_plan import SplitPlan
from tests.support.paged_cases import LAYER, Case, check, make
from tests.support.thinned import diagonal, thinned

MIXED: dict[str, Any] = {"queries": (1, 11, 1, 6), "contexts": (33, 11, 1, 40)}
LENGTHS = (1, 8, 9, 64, 101)
DECODE: dict[str, Any] = {"queries": (1,) * len(LENGTHS), "contexts": LENGTHS}
SPANS = ((0, 22, 34), (0, 34, 37), (2, 30, 36))
MEDIA: dict[str, Any] = {"queries": (20, 1, 6), "contexts": (40, 33, 36), "spans": SPANS}

SMALL = SplitPlan(programs=32, min_split=16, max_splits=8)
PLANS = {
    "whole": SplitPlan(programs=1, min_split=128),
    "halves": SplitPlan(programs=1, min_split=16, max_splits=2),
    "blocks": SplitPlan(programs=1000, min_split=8),
    "odd": SplitPlan(programs=1000, min_split=11, max_splits=7),
}
# The shapes, types and codes that run by default; each value of each of them is among these.
USUAL = (
    "dim16-group1-blocks8", "dim16-group2-blocks16", "dim20-group2-blocks8", "dim32-group7-blocks8",
    "dim80-group1-blocks16", "dim80-group7-blocks16", "mixed, bfloat16", "everything, bfloat16",
    "decode, float16", "mixed, float32, int8", "decode, float16, int8",
    "decode, float32, fp8_e4m3", "everything, bfloat16, fp8_e4m3",
)  # fmt: skip
SHAPES = [
    Case(
        f"dim{dim}-group{group}-blocks{block_size}",
        **MIXED,
        group=group,
        kv_heads=1 if group == 7 else 2,
        k_dim=dim,
        v_dim=dim,
        block_size=block_size,
    )
    for row, dim in enumerate((16, 20, 32, 80))
    for column, group in enumerate((1, 2, 7))
    for block_size in ((8, 16)[(row + column) % 2],)  # each two of these values meet once
]
FEATURES = [
    Case("keys wider than values", **MIXED, k_dim=48, v_dim=20),
    Case("values wider than keys", **MIXED, k_dim=20, v_dim=48),
    Case("a long chunk in the middle", (70,), (108,), group=7, kv_heads=1),
    Case("window", (1, 40, 1, 6), (33, 60, 1, 40), window=9),
    Case("window narrower than a tile of keys", (40,), (60,), group=1, window=3),
    Case("window of one", **MIXED, window=1),
    Case("window, decode", **DECODE, window=19),
    Case("spans", **MEDIA),
    Case("spans and window", **MEDIA, window=5),
    Case("spans of other layers", **MEDIA, windowed_spans=True),
    Case("softcap", **MIXED, softcap=3.0),
    Case("softcap, decode", **DECODE, softcap=3.0),
    Case("sinks", **MIXED, sinks=True),
    Case("sinks and window, decode", **DECODE, sinks=True, window=19),
    Case("everything", **MEDIA, window=5, softcap=3.0, sinks=True, group=3, k_dim=20),
]
# What the other features show together; run with the rest.
SELDOM = ("values wider than keys", "window narrower than a tile of keys", "window, decode",
          "spans and window", "softcap", "sinks")  # fmt: skip
HALVES = [
    replace(case, name=f"{case.name}, {dtype}", dtype=dtype)
    for dtype in ("bfloat16", "float16")
    for case in (
        Case("mixed", **MIXED, group=7, kv_heads=1, k_dim=80, v_dim=80),
        Case("decode", **DECODE, k_dim=20, v_dim=20),
        Case("everything", **MEDIA, window=5, softcap=3.0, sinks=True),
    )
]


CODES = [
    replace(case, name=f"{case.name}, {case.dtype}, {codes}", codes=codes)
    for codes in (INT8, FP8)
    for case in (
        Case("mixed", **MIXED, group=7, kv_heads=1, k_dim=80, v_dim=48),
        Case("decode", **DECODE, k_dim=20, v_dim=20, window=19),
        Case("everything", **MEDIA, window=5, softcap=3.0, sinks=True, dtype="bfloat16"),
        Case("decode", **DECODE, block_size=16, dtype="float16"),
    )
]


@pytest.fixture(autouse=True)
def bfloat16_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter keeps bfloat16 as integers, and would multiply those."""
    dot = InterpreterBuilder.create_dot

    def wide(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            a, b = self.cast_impl(a, tl.float32), self.cast_impl(b, tl.float32)
        return dot(self, a, b, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", wide)


@pytest.mark.parametrize(
    "case",
    [
        *thinned([(c,) for c in FEATURES], lambda case: case.name not in SELDOM),
        *thinned([(c,) for c in SHAPES + HALVES + CODES], lambda case: case.name in USUAL),
    ],
    ids=lambda case: case.name,
)
def test_equals_the_reference(case: Case) -> None:
    check(case, TritonAttention(SMALL))


@pytest.mark.parametrize(("plan", "block_size"), diagonal(list(PLANS), [8, 16]))
def test_any_split_gives_the_same(plan: str, block_size: int) -> None:
    check(Case("decode", **DECODE, block_size=block_size), TritonAttention(PLANS[plan]))


def test_splits_of_a_captured_graph_suit_longer_contexts() -> None:
    case = Case("decode", **DECODE)
    step = make(case)
    backend = TritonAttention(SplitPlan(programs=100, min_split=16), captured=True)
    expected = TorchAttention().attend(step.query, LAYER, step.batch, 0.3, None, None)
    bounded = replace(step.batch, context_lens=[48] * len(LENGTHS))
    bounded.contexts_tensor.copy_(step.batch.contexts_tensor)
    output = backend.attend(step.query, LAYER, bounded, 0.3, None, None)
    torch.testing.assert_close(output, expected, atol=2e-5, rtol=2e-5)


def test_attention_of_a_model_layer_takes_the_backend_of_its_batch() -> None:
    class Counting(TritonAttention):
        def launch(self, kernel: Any, *rest: Any) -> None:
            launched.append(kernel.fn.__name__)
            super().launch(kernel, *rest)

    launched: list[str] = []
    outputs = []
    for backend in (None, Counting(SMALL)):
        step = make(Case("mixed", **MIXED))
        batch = replace(step.batch, backend=backend)
        query, key, value = (t.unsqueeze(0) for t in (step.query, step.key, step.value))
        layer: Any = SimpleNamespace(layer_idx=LAYER)
        output, _ = paged_attention(layer, query, key, value, None, paged=batch, scaling=0.3)
        outputs.append(output)
    torch.testing.assert_close(outputs[1], outputs[0], atol=2e-5, rtol=2e-5)
    assert launched == ["write_kernel", "decode_kernel", "merge_kernel", "prefill_kernel"]
