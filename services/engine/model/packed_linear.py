"""Linear layers as a device computes them fastest: one product for all layers that read the same
input, such as the projections to queries, keys and values, and on a CPU weights in the order in
which oneDNN reads them.

A step that decodes few tokens is as fast as the weights are read. With two threads `linear` reads
bfloat16 at 16 to 20 GB/s, oneDNN its own order at 32 to 38; in float32 batches gain most. Where
oneDNN has no bfloat16, a kernel reads the files' order, see `cpu_linear`. On a GPU the small
products of a layer take longer to start than to read their weights, which larger ones do not.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn
from transformers import PreTrainedModel

from protocol.errors import ConfigError
from services.engine.attention.numba_runtime import onednn_has_bfloat16
from services.engine.model.cpu_linear import WideningLinear, computes_linear
from services.engine.model.few_rows import FewRows
from services.engine.model.shared_linear import MergedLinear, share

_ROWS = 8  # oneDNN chooses the order for so many; one for 1 is slow for 3, one for 64 for 8 … 64


class PackedLinear(nn.Module):
    """y = x Wᵀ + b with W in oneDNN's order."""

    alone = True  # a layer that shares its input with no other is faster, too
    copies = True  # it holds the weight in another order

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """weight [out, in], bias [out] or None."""
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        self._bias = bias
        self._few = FewRows.of(self._weight, weight)
        # Looked up here: by its name alone PyTorch compares its overloads in every call, and builds
        # without oneDNN have none.
        self._linear = torch.ops.mkldnn._linear_pointwise.default

    @staticmethod
    def suits(weight: torch.Tensor) -> bool:
        """Whether oneDNN takes a weight [out, in]."""
        return weight.dim() == 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] → [..., out]"""
        if self._few is not None and self._few.suits(x):
            return self._few(x, self._weight, self._bias)
        # It may also add or activate: not here.
        out: torch.Tensor = self._linear(x, self._weight, self._bias, "none", [], "")
        return out


Product = PackedLinear | WideningLinear | MergedLinear


class InputsSeen:
    """Which linear layers of a model read one input, recorded while the model runs once."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._inputs: dict[nn.Module, torch.Tensor] = {}  # kept, so that no two have one identity

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        hooks = [
            m.register_forward_pre_hook(self._seen) for m in self._model.modules() if packable(m)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _seen(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs:
            self._inputs[module] = inputs[0]

    def groups(self, parent: nn.Module) -> list[list[str]]:
        """Names of the parent's linear layers, those together that read the same tensor. Once per
        parent: what was recorded of the layers is forgotten, and no longer keeps them."""
        found: dict[tuple[int, bool], list[str]] = {}
        for name, child in parent.named_children():
            if packable(child):
                source = self._inputs.pop(child, None)
                # Biases are joined as weights are, so all layers of a group must have one, or none.
                key = id(child if source is None else source), child.bias is None
                found.setdefault(key, []).append(name)
        return list(found.values())


def plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether it is PyTorch's own layer, and not one that computes something else."""
    return type(module) is nn.Linear


def body_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """The plain linear layers of a model, by their names within it, without those of its head,
    which families call by various names."""
    body, head = model, None
    if isinstance(model, PreTrainedModel):
        body, head = model.base_model, model.get_output_embeddings()
    inside = set(body.modules()) - {head}
    return {name: m for name, m in model.named_modules() if plain(m) and m in inside}


def packable(module: nn.Module) -> bool:
    """Whether it computes with all of its weight as it stands. Checkpoints that are quantized bring
    weights of other types, and layers whose own `forward` quantizes inputs."""
    return plain(module) and type(module.weight) is nn.Parameter and "forward" not in vars(module)


def packing(layout: str, dtype: torch.dtype, device: str) -> type[Product] | None:
    """What linear layers become, None if they stay: by `auto` on a GPU, and on a CPU that oneDNN
    packs this type for, or that there is a kernel for.

    `ConfigError` if `packed` is asked for where it cannot be.
    """
    found = _product(dtype, device) if layout != "plain" else None
    if layout == "packed" and found is None:
        raise ConfigError(f"--weight-layout packed: there is none for {dtype} on {device}")
    return found


def _product(dtype: torch.dtype, device: str) -> type[Product] | None:
    if device != "cpu":
        return MergedLinear
    if dtype is torch.bfloat16 and computes_linear():
        return WideningLinear
    if dtype is torch.bfloat16:
        return PackedLinear if onednn_has_bfloat16() else None
    packs = dtype is torch.float32 and torch.backends.mkldnn.is_available()
    return PackedLinear if packs else None


def pack(model: nn.Module, inputs: InputsSeen, product: type[Product]) -> int:
    """Replace the linear layers of `model`; returns how many products they have become.

    One parent's layers after another, so that no more than theirs is in memory twice. A weight
    that something else holds too, as tied embeddings do, would stay beside its copy: such a layer
    is left as it is.
    """
    held = Counter(
        weight.data_ptr()
        for module in model.modules()
        for weight in module.parameters(recurse=False)
    )
    mapped = _MappedFiles()
    count = 0
    for parent in [module for module in model.modules() if not plain(module)]:
        for names in inputs.groups(parent):
            layers: list[Any] = [parent.get_submodule(name) for name in names]
            if len(layers) == 1 and not product.alone:
                continue
            copies = product.copies or len(layers) > 1
            alone = all(held[layer.weight.data_ptr()] == 1 for layer in layers)
            if (alone or not copies) and all(product.suits(layer.weight) for layer in layers):
                for name, packed in zip(names, _packed(layers, product), strict=True):
                    setattr(parent, name, packed)
                for layer in layers if copies else ():
                    mapped.leave(layer.weight)
                count += 1
            layers.clear()
    return count


class _MappedFiles:
    """Weights that are mapped from files: their pages can be taken out of this process."""

    def __init__(self) -> None:
        self._ranges = [r for line in _maps() if (r := _file_range(line)) is not None]

    def leave(self, weight: torch.Tensor) -> None:
        """Of a weight that nothing reads any more. Its mapping lasts as long as any tensor of the
        file, so all weights would count twice. Pages read again come back from the file."""
        first, last = weight.data_ptr(), weight.data_ptr() + weight.nbytes
        if not any(begin <= first and last <= end for begin, end in self._ranges):
            return
        # Whole pages alone: those at the ends may hold other weights, too.
        begin = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
        length = last // mmap.PAGESIZE * mmap.PAGESIZE - begin
        if length > 0:
            address, size = ctypes.c_void_p(begin), ctypes.c_size_t(length)
            ctypes.CDLL(None).madvise(address, size, mmap.MADV_DONTNEED)  # it may be refused


def _maps() -> list[str]:
    """Memory mappings of this process, one a line; none where the system does not tell."""
    try:
        return Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []


def _file_range(line: str) -> tuple[int, int] | None:
    """First and past-the-end address of a mapped file of weights."""
    fields = line.split(maxsplit=5)
    if len(fields) < 6 or not fields[5].endswith(".safetensors"):
        return None
    first, _, last = fields[0].partition("-")
    return int(first, 16), int(last, 16)


def _packed(layers: Sequence[Any], product: type[Product]) -> list[nn.Module]:
    """What stands for layers that read one input."""
    if len(layers) == 1:
        return [product(layers[0].weight, layers[0].bias)]
    biases: list[torch.Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    weights: list[torch.Tensor] = [layer.weight for layer in layers]
    merged = product(torch.cat(weights), torch.cat(biases) if biases else None)
    return share(merged, layers)
