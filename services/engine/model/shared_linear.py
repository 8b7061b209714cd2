"""Linear layers that read one input, as one product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Parts = Callable[[torch.Tensor], Sequence[torch.Tensor]]


class _Shared:
    """The product of layers that read one input. The first that is asked computes all parts."""

    def __init__(self, product: nn.Module, sizes: Sequence[int], inputs: int) -> None:
        self._product = product
        self.inputs = inputs
        self._sizes = list(sizes)
        self._input: torch.Tensor | None = None
        self._parts: dict[int, torch.Tensor] = {}

    @property
    def count(self) -> int:
        return len(self._sizes)

    def outputs(self, index: int) -> int:
        return self._sizes[index]

    def weight(self, index: int) -> torch.Tensor:
        whole: Any = self._product.weight
        part: torch.Tensor = whole.split(self._sizes)[index]
        return part

    def bias(self, index: int) -> torch.Tensor | None:
        whole: Any = self._product._bias
        part: torch.Tensor | None = None if whole is None else whole.split(self._sizes)[index]
        return part

    def part(self, index: int, x: torch.Tensor) -> torch.Tensor:
        # By identity, and the input is kept until all parts are out: no other tensor can be it.
        if x is not self._input or index not in self._parts:
            self._parts = dict(enumerate(self._product(x).split(self._sizes, dim=-1)))
            self._input = x
        # A view, to which an adapter may add in place: the parts have no element in common.
        part = self._parts.pop(index)
        if not self._parts:
            self._input = None
        return part

    def parts(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """All of them, in order."""
        parts: Sequence[torch.Tensor] = self._product.forward(x).split(self._sizes, dim=-1)
        return parts


class SharedLinear(nn.Module):
    """One layer of those that share a product."""

    def __init__(self, shared: _Shared, index: int) -> None:
        super().__init__()
        self._shared = shared
        self._index = index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._shared.part(self._index, x)

    @property
    def weight(self) -> torch.Tensor:
        """[out, in], for models whose own code reads it; `AttributeError` if it lies in another
        order."""
        return self._shared.weight(self._index)

    @property
    def bias(self) -> torch.Tensor | None:
        return self._shared.bias(self._index)

    @property
    def in_features(self) -> int:
        return self._shared.inputs

    @property
    def out_features(self) -> int:
        return self._shared.outputs(self._index)

    @staticmethod
    def together(layers: Sequence[nn.Module]) -> Parts:
        """Computes all of `layers`, of one input, at once where they are those that share a
        product."""
        shared = [layer for layer in layers if isinstance(layer, SharedLinear)]
        if shared and _all_parts(shared, len(layers)):
            return shared[0]._shared.parts
        return lambda x: [layer(x) for layer in layers]


def _all_parts(layers: Sequence[SharedLinear], count: int) -> bool:
    """Whether so many layers are all of one product, in order."""
    first = layers[0]._shared
    one = all(layer._shared is first for layer in layers)
    order = [layer._index for layer in layers]
    return one and order == list(range(count)) and count == first.count


def share(product: nn.Module, layers: Sequence[nn.Linear]) -> list[nn.Module]:
    """What stands for `layers`, whose outputs `product` computes one after the other."""
    sizes = [layer.out_features for layer in layers]
    shared = _Shared(product, sizes, layers[0].in_features)
    return [SharedLinear(shared, index) for index in range(len(sizes))]


class MergedLinear(nn.Module):
    """y = x Wᵀ + b, with the weights of several layers one below the other."""

    alone = False
    copies = True

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """weight [out, in], bias [out] or None."""
        super().__init__()
        self.weight = weight
        self._bias = bias

    @staticmethod
    def suits(weight: torch.Tensor) -> bool:
        """Whether a weight [out, in] can be merged with others."""
        return weight.dim() == 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] → [..., out]"""
        return F.linear(x, self.weight, self._bias)
