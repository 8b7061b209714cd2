"""The kernel for CPUs that oneDNN has no bfloat16 for computes what `linear` computes."""

import pytest
import torch
from torch import nn

from services.engine.model import cpu_linear, packed_linear
from services.engine.model.cpu_linear import WideningLinear, computes_linear
from services.engine.model.packed_linear import InputsSeen, pack, packing

pytestmark = pytest.mark.skipif(cpu_linear._kernel() is None, reason="no kernel on this machine")
BFLOAT16 = torch.bfloat16


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 33])
@pytest.mark.parametrize(("inputs", "outputs"), [(200, 72), (1024, 32), (2500, 4), (1, 36)])
@pytest.mark.parametrize("bias", [True, False])
def test_it_equals_the_product_in_float32(rows: int, inputs: int, outputs: int, bias: bool) -> None:
    torch.manual_seed(rows)
    layer = nn.Linear(inputs, outputs, bias=bias).to(BFLOAT16).requires_grad_(False)
    x = torch.randn(1, rows, inputs).to(BFLOAT16)
    actual = WideningLinear(layer.weight, layer.bias)(x)
    assert actual.dtype is BFLOAT16 and actual.shape == (1, rows, outputs)
    torch.testing.assert_close(actual.float(), layer.float()(x.float()), atol=1e-2, rtol=1e-2)


def test_rows_may_lie_apart_and_weights_anywhere() -> None:
    torch.manual_seed(0)
    weight = torch.randn(8 * 48 + 1).to(BFLOAT16)[1:].view(8, 48)
    x = torch.randn(6, 96).to(BFLOAT16)[:, ::2]
    expected = x.float() @ weight.float().T
    actual = WideningLinear(weight, None)(x)
    torch.testing.assert_close(actual.float(), expected, atol=1e-2, rtol=1e-2)


def test_which_weights_it_takes() -> None:
    good = torch.zeros(8, 4, dtype=BFLOAT16)
    assert WideningLinear.suits(good)
    for weight in (good.float(), good[:6], torch.zeros(4, 8, dtype=BFLOAT16).T):
        assert not WideningLinear.suits(weight)
        with pytest.raises(ValueError, match="no kernel"):
            WideningLinear(weight, None)


def test_it_is_used_where_onednn_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cpu_linear, packed_linear):
        monkeypatch.setattr(module, "onednn_has_bfloat16", lambda: False)
    assert computes_linear()
    assert packing("auto", BFLOAT16, "cpu") is WideningLinear
    monkeypatch.setattr(cpu_linear, "_kernel", lambda: None)
    assert not computes_linear()
    assert packing("auto", BFLOAT16, "cpu") is None


def test_tied_weights_are_read_where_they_are_and_others_stay() -> None:
    embedding = nn.Embedding(16, 8, dtype=BFLOAT16)
    model = nn.ModuleDict(
        {
            "embedding": embedding,
            "head": nn.Linear(8, 16, bias=False, dtype=BFLOAT16),
            "odd": nn.Linear(8, 6, dtype=BFLOAT16),
        }
    ).requires_grad_(False)
    model["head"].weight = embedding.weight
    assert pack(model, InputsSeen(model), WideningLinear) == 1
    assert model["head"]._weight is embedding.weight
    assert type(model["odd"]) is nn.Linear
