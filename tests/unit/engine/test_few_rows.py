"""Products of few rows, by a kernel that reads a weight in oneDNN's order."""

import pytest
import torch

from services.engine.attention.numba_runtime import has_bfloat16_products, onednn_has_bfloat16
from services.engine.model import few_rows
from services.engine.model.few_rows import FewRows
from services.engine.model.packed_linear import PackedLinear

MOST = 12

pytestmark = pytest.mark.skipif(
    not (onednn_has_bfloat16() and few_rows._kernel()), reason="the processor lacks AVX512-BF16"
)


@pytest.fixture(autouse=True)
def two_threads() -> None:
    """For more, oneDNN gives a weight as small as here another order."""
    torch.set_num_threads(2)


def weight_of(outputs: int, width: int) -> torch.Tensor:
    return torch.randn(outputs, width, generator=torch.manual_seed(1)).bfloat16()


def kernel_of(weight: torch.Tensor) -> tuple[FewRows, torch.Tensor]:
    layer = PackedLinear(weight, None)
    assert layer._few is not None
    return layer._few, layer._weight


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("outputs", "width"), [(64, 64), (192, 128), (320, 1024)])
@pytest.mark.parametrize("rows", range(1, MOST + 1))
def test_it_computes_the_product(rows: int, outputs: int, width: int, bias: bool) -> None:
    weight, x = weight_of(outputs, width), torch.randn(rows, width).bfloat16()
    added = torch.randn(outputs).bfloat16() if bias else None
    few, packed = kernel_of(weight)
    expected = torch.nn.functional.linear(
        x.double(), weight.double(), None if added is None else added.double()
    )
    found = few(x, packed, added)
    assert (found.shape, found.dtype) == ((rows, outputs), torch.bfloat16)
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=width**0.5 * 2**-18)


def test_rows_may_have_any_shape_and_lie_apart() -> None:
    weight = weight_of(64, 32)
    few, packed = kernel_of(weight)
    x = torch.randn(2, 5, 64).bfloat16()[..., :32]
    found = few(x, packed, None)
    assert found.shape == (2, 5, 64)
    assert torch.equal(found.view(10, 64), few(x.reshape(10, 32), packed, None))


def test_a_layer_uses_it_for_few_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = PackedLinear(weight_of(64, 32), None)
    seen = []
    call = FewRows.__call__
    monkeypatch.setattr(
        FewRows, "__call__", lambda few, x, *more: (seen.append(len(x)), call(few, x, *more))[1]
    )
    for rows in (0, 1, MOST, MOST + 1):
        assert layer(torch.randn(rows, 32).bfloat16()).shape == (rows, 64)
    assert seen == [1, MOST]


@pytest.mark.parametrize("shape", [(63, 64), (64, 63), (96, 40)])
def test_shapes_that_are_no_panels_are_left_to_onednn(shape: tuple[int, int]) -> None:
    assert PackedLinear(weight_of(*shape), None)._few is None


def test_another_type_is_left_to_onednn() -> None:
    assert PackedLinear(weight_of(64, 32).float(), None)._few is None


def test_another_order_is_left_to_onednn() -> None:
    """As another version or processor may have: told by where the weights are."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight_of(128, 32), 8)
    other = weight_of(128, 32).view(2, 64, 32).flip(0).reshape(128, 32)
    assert FewRows.of(packed, weight_of(128, 32)) is not None
    assert FewRows.of(packed, other) is None


def test_another_processor_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba may be told to compile for one: LLVM would end the process there."""
    from numba import config

    monkeypatch.setattr(config, "CPU_NAME", "generic")
    assert not has_bfloat16_products()
