"""The fused kernels on a GPU against the operations they replace, at the sizes of real
models."""

import pytest
import torch
import torch.nn.functional as F

from services.engine.model.fused_ops import add_rms_norm, rms_norm, rotate_and_write, silu_mul
from tests.support.fused_cases import EPSILON, own_norm, rotary_case, rotated

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = "cuda"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """To a rounding of the last place; a GPU's exponential and division are a little worse than
    float32."""
    eps = torch.finfo(actual.dtype).eps
    tolerance = 8 * eps if actual.dtype is torch.float32 else 2 * eps
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2048), (64, 3584), (2048, 8192), (64, 28, 128)])
def test_norms(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(2, *shape, device=DEVICE).to(dtype)
    weight = torch.randn(shape[-1], device=DEVICE).to(dtype)
    close(rms_norm(x, weight, EPSILON), own_norm(x, weight))
    normed, total = add_rms_norm(x, residual, weight, EPSILON)
    assert torch.equal(total, x + residual)
    close(normed, own_norm(x + residual, weight))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 11008), (64, 18944), (2048, 18944)])
def test_gates(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Halves of one product, as after merged layers."""
    torch.manual_seed(0)
    both = (4 * torch.randn(shape[0], 2 * shape[1], device=DEVICE)).to(dtype)
    gate, up = both.chunk(2, dim=-1)
    close(silu_mul(gate, up), F.silu(gate) * up)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(28, 4, 128), (16, 2, 64), (4, 1, 80)])
def test_rotation_and_write(heads: int, kv_heads: int, dim: int, dtype: str) -> None:
    case = rotary_case(heads, kv_heads, dim, dim, dtype, DEVICE)
    query, key = rotated(case.query, case), rotated(case.key, case)
    pool = case.batch.cache.pool.clone()
    cache = type(case.batch.cache)(case.batch.cache.layout, pool)
    slots = case.batch.slot_blocks, case.batch.slot_offsets
    cache.write(case.layer, *slots, key, case.value)
    rotate_and_write(case.query, case.key, case.value, case.cos, case.sin, case.layer, case.batch)
    close(case.query, query)
    close(case.batch.cache.pool, pool)
