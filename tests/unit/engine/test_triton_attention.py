"""The Triton kernels of attention without a GPU: compiled for absent devices."""

from itertools import product
from typing import Any

import pytest
import torch
import triton
from hypothesis import given
from hypothesis import strategies as st

from services.engine.attention.kv_codes import FP8, INT8
from services.engine.attention.paged import backend_for
from services.engine.attention.torch_attention import TorchAttention
from services.engine.attention.triton_backend import TritonAttention
from services.engine.attention.triton_call import Arguments
from services.engine.attention.triton_plan import SplitPlan
from tests.support.aside import aside, import_without
from tests.support.compiled_kernels import SHARED_MEMORY, compiled
from tests.support.paged_cases import LAYER, Case, make
from tests.support.thinned import thinned


class Recorder(TritonAttention):
    """Keeps launches instead of making them."""

    def __init__(self, plan: SplitPlan) -> None:
        super().__init__(plan)
        object.__setattr__(self, "launches", [])

    def launch(self, kernel: Any, grid: tuple[int, ...], arguments: Arguments) -> None:
        self.launches.append((kernel, arguments))  # type: ignore[attr-defined]


# The others compile for seven seconds each.
USUAL = (("int8", 90), ("narrow", 80), ("everything", 80))
COMPILED = [
    Case("plain", (40, 1), (300, 300), group=7, k_dim=128, v_dim=128, dtype="bfloat16"),
    Case("narrow", (40, 1), (300, 300), k_dim=80, v_dim=64),
    Case("int8", (40, 1), (300, 300), group=7, k_dim=128, v_dim=128, dtype="bfloat16", codes=INT8),
    Case("fp8", (40, 1), (300, 300), k_dim=80, v_dim=64, codes=FP8),
    Case(
        "everything",
        (40, 1),
        (300, 300),
        k_dim=256,
        v_dim=256,
        window=64,
        spans=((0, 270, 280),),
        softcap=50.0,
        sinks=True,
        dtype="bfloat16",
    ),
]


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="kernels are interpreted")
@pytest.mark.parametrize(
    ("case", "capability"),
    thinned(
        product(COMPILED, [80, 90]),
        lambda case, capability: (case.name, capability) in USUAL,
    ),
    ids=lambda value: value.name if isinstance(value, Case) else None,
)
def test_kernels_compile(case: Case, capability: int) -> None:
    backend = Recorder(SplitPlan(programs=100))
    step = make(case)
    backend.write(step.key, step.value, LAYER, step.batch)
    backend.attend(step.query, LAYER, step.batch, 0.1, case.softcap, step.sinks)
    kernels = ["write_codes_kernel" if case.codes else "write_kernel"]
    kernels += [] if case.spans else ["decode_kernel", "merge_kernel"]
    launches = backend.launches  # type: ignore[attr-defined]
    assert [kernel.__name__ for kernel, _ in launches] == [*kernels, "prefill_kernel"]
    for kernel, arguments in launches:
        assert compiled(kernel, arguments, capability).metadata.shared <= SHARED_MEMORY


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=80), st.integers(1, 32))
def test_splits_cover_every_context_and_fit_the_merge(visible: list[int], kv_heads: int) -> None:
    plan = SplitPlan(programs=400)
    splits = plan.eager(visible, kv_heads)
    assert splits.keys % plan.min_split == 0
    assert splits.count <= plan.max_splits
    assert splits.count * splits.keys >= max(visible)
    assert (splits.count - 1) * splits.keys < max(visible)


def test_one_long_context_is_cut_among_short_ones() -> None:
    plan = SplitPlan(programs=400)
    assert plan.eager([512] * 128, kv_heads=4).count == 1
    assert plan.eager([512] * 127 + [32768], kv_heads=4).count > 16
    assert plan.eager([32768], kv_heads=4).count == plan.max_splits


def test_other_devices_take_pytorch() -> None:
    assert backend_for(torch.device("meta")) == TorchAttention()


def test_attention_needs_no_triton() -> None:
    assert aside(import_without, "services.engine.attention.paged", "triton")
