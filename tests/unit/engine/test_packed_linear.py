"""Packed and merged linear layers compute what the layers that they replace compute."""

import weakref
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from protocol.errors import ConfigError
from services.engine.attention.numba_runtime import onednn_has_bfloat16
from services.engine.model.language import LanguageModel
from services.engine.model.packed_linear import (
    InputsSeen,
    PackedLinear,
    Product,
    pack,
    packing,
)
from services.engine.model.shared_linear import MergedLinear, SharedLinear
from tests.conftest import ModelDir
from tests.support.aside import aside

IN, OUT = 48, {"q": 32, "k": 16, "v": 16, "o": 48}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def mapped() -> int:
    """kB of weight files that are in this process's memory."""
    found, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            ours = line.endswith(".safetensors")
        elif ours and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def before_and_after(file: Path) -> tuple[int, int]:
    """What is mapped, in a process of its own, of a layer that is packed."""
    weights = load_file(file)
    layer = nn.Linear(4096, 2048, bias=False, device="meta").requires_grad_(False)
    layer.weight = nn.Parameter(weights.pop("big.weight"), requires_grad=False)
    model = nn.Sequential(layer)
    inputs = InputsSeen(model)
    with inputs.recording():
        model(torch.randn(2, 4096))
    before = mapped()
    del layer
    pack(model, inputs, PackedLinear)
    return before, mapped()


class Block(nn.Module):
    """Three projections of one input, one of their results, and an unused one."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        for name, size in OUT.items():
            setattr(self, name, nn.Linear(IN if name != "o" else 64, size, bias=bias))
        self.unused = nn.Linear(IN, 8)
        self.order: tuple[str, ...] = ("q", "k", "v")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = {name: self.get_submodule(name)(x) for name in self.order}
        joined = torch.cat([parts[name] for name in ("q", "k", "v")], dim=-1)
        return self.get_submodule("o")(joined)  # type: ignore[no-any-return]


def packed_block(block: Block, product: type[Product] = PackedLinear) -> int:
    inputs = InputsSeen(block)
    with inputs.recording():
        block(torch.randn(2, IN, dtype=next(block.parameters()).dtype))
    return pack(block, inputs, product)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [1, 3, 8, 100])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_equals_the_plain_one(dtype: torch.dtype, rows: int, bias: bool) -> None:
    if packing("auto", dtype, "cpu") is not PackedLinear:
        pytest.skip(f"oneDNN packs no {dtype} on this CPU")
    torch.manual_seed(rows)
    layer = nn.Linear(200, 72, bias=bias).to(dtype).requires_grad_(False)
    x = torch.randn(1, rows, 200).to(dtype)
    actual = PackedLinear(layer.weight, layer.bias)(x)
    assert actual.shape == (1, rows, 72)
    torch.testing.assert_close(actual, layer(x), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("bias", [True, False])
def test_layers_of_one_input_become_one_product(bias: bool) -> None:
    block = Block(bias=bias).requires_grad_(False)
    first, second = torch.randn(5, IN), torch.randn(1, IN)
    expected = [block(first), block(second)]
    weights = [weakref.ref(block.get_submodule(name).weight) for name in OUT]
    assert packed_block(block) == 3  # q·k·v, o and the unused one
    assert [weight() for weight in weights] == [None] * 4
    for order in permutations(("q", "k", "v")):
        block.order = order
        for x, wanted in zip((first, second), expected, strict=True):
            torch.testing.assert_close(block(x), wanted, atol=1e-5, rtol=1e-5)


def test_parts_go_with_the_input_that_they_were_computed_from() -> None:
    block = Block().requires_grad_(False)
    q, k = (block.get_submodule(name) for name in ("q", "k"))
    first, second = torch.randn(2, IN), torch.randn(2, IN)
    expected = [q(first), k(second), q(first), q(first)]
    packed_block(block)
    q, k = (block.get_submodule(name) for name in ("q", "k"))
    for actual, wanted in zip([q(first), k(second), q(first), q(first)], expected, strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("names", [*permutations(("q", "k", "v")), ("q", "k"), ("q", "unused")])
def test_several_layers_of_one_input_are_computed_together(names: tuple[str, ...]) -> None:
    """At once where they are those that share a product, else one after the other."""
    block = Block().requires_grad_(False)
    x = torch.randn(3, IN)
    expected = [block.get_submodule(name)(x) for name in names]
    packed_block(block)
    parts = SharedLinear.together([block.get_submodule(name) for name in names])
    assert (parts.__name__ == "parts") == (names == ("q", "k", "v"))
    for actual, wanted in zip(parts(x), expected, strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("family", "products"), [("llama", 3 * 4 + 1), ("qwen3", 3 * 4)])
def test_a_model_is_merged_and_tied_embeddings_are_not_copied(
    family: str, products: int, model_dir: ModelDir
) -> None:
    path = model_dir(family)
    plain, packed = (
        LanguageModel(path, torch.float32, "cpu", layout) for layout in ("plain", "packed")
    )
    assert plain.parameter_bytes == packed.parameter_bytes
    modules = list(packed._model.modules())
    assert len([m for m in modules if isinstance(m, PackedLinear)]) < products
    left = [name for name, m in packed._model.named_modules() if type(m) is nn.Linear]
    assert left == ([] if family == "llama" else ["lm_head"])


def test_packed_weights_are_not_held_beside_the_mapped_file(tmp_path: Path) -> None:
    file = tmp_path / "layer.safetensors"
    save_file({"big.weight": torch.randn(2048, 4096), "kept": torch.randn(4)}, file)
    before, packed = aside(before_and_after, file)
    assert before > 32_000  # kB of the file, all read
    assert packed < 1_000


def test_where_weights_are_packed() -> None:
    by_onednn = onednn_has_bfloat16()
    assert (packing("auto", torch.bfloat16, "cpu") is PackedLinear) == by_onednn
    assert packing("packed", torch.float32, "cpu") is PackedLinear
    assert packing("auto", torch.float32, "cpu") is PackedLinear
    assert packing("plain", torch.bfloat16, "cpu") is None
    with pytest.raises(ConfigError, match="--weight-layout"):
        packing("packed", torch.float16, "cpu")


def test_on_a_gpu_layers_of_one_input_are_merged_and_others_left() -> None:
    assert packing("auto", torch.bfloat16, "cuda") is MergedLinear
    assert packing("plain", torch.bfloat16, "cuda:1") is None
    block = Block().requires_grad_(False)
    x = torch.randn(5, IN)
    expected = block(x)
    weight, bias = (block.get_parameter(f"k.{name}").clone() for name in ("weight", "bias"))
    assert packed_block(block, MergedLinear) == 1
    torch.testing.assert_close(block(x), expected, atol=1e-5, rtol=1e-5)
    merged: Any = block.get_submodule("k")
    assert torch.equal(merged.weight, weight)
    assert torch.equal(merged.bias, bias)
    assert (merged.in_features, merged.out_features) == (IN, OUT["k"])
    assert type(block.get_submodule("o")) is nn.Linear
