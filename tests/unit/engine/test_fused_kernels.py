"""The fused kernels without a GPU: compiled for absent devices."""

from typing import Any

import pytest
import torch
import triton

from services.engine.attention.kv_codes import INT8
from services.engine.model import fused_ops
from services.engine.model.fused_ops import (
    add_rms_norm,
    rms_norm,
    rotate_and_write,
    rotate_heads,
    silu_mul,
)
from tests.support.compiled_kernels import SHARED_MEMORY, compiled
from tests.support.fused_cases import rotary_case
from tests.support.thinned import diagonal


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="kernels are interpreted")
@pytest.mark.parametrize(("dtype", "capability"), diagonal(["bfloat16", "float32"], [90, 80]))
def test_kernels_compile(dtype: str, capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the sizes of Qwen2.5-VL-7B and of its largest sister."""
    launched: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(
        fused_ops, "launch", lambda kernel, _, arguments: launched.append((kernel, arguments))
    )
    for hidden in (3584, 8192):
        x = torch.zeros(2, hidden, dtype=getattr(torch, dtype))
        rms_norm(x, x[0], 1e-6)
        add_rms_norm(x, x, x[0], 1e-6)
        silu_mul(x, x)
    angles = torch.zeros(2, 80)
    rotate_heads(torch.zeros(2, 32, 80, dtype=getattr(torch, dtype)), angles, angles)
    case = rotary_case(28, 4, 128, 128, dtype)
    rotate_and_write(case.query, case.key, case.value, case.cos, case.sin, case.layer, case.batch)
    case = rotary_case(28, 4, 128, 128, dtype, codes=INT8)
    rotate_and_write(case.query, case.key, case.value, case.cos, case.sin, case.layer, case.batch)
    assert len(launched) == 9
    for kernel, arguments in launched:
        assert compiled(kernel, arguments, capability).metadata.shared <= SHARED_MEMORY
