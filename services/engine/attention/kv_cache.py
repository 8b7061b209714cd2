"""The paged KV cache: one pool of blocks, each block holding all layers of `block_size` tokens.

Block-major, so that a block is one contiguous run of bytes and moves between processes as one
descriptor, for any number of layers. A block of codes (see `kv_codes`) has the codes of all
layers first and their scales behind them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from protocol.errors import ConfigError
from protocol.refs import KVLayout
from services.engine.attention.kv_codes import NUMBERS, SCALE, decoded, encoded

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_ALIGNMENT = 16  # bytes, of where scales begin and of a block of codes


class LayerPlace(NamedTuple):
    """A layer in a block: where its keys and values begin, in elements, and their scales, in
    scales (0 if there are none); heads and dimensions; its sliding window in tokens, 0 for none."""

    keys: int  # where keys begin, in elements
    values: int  # where values begin, in elements
    key_scales: int  # where scales of keys begin, in scales, 0 without
    value_scales: int  # where scales of values begin, in scales, 0 without
    kv_heads: int  # number of KV heads
    k_dim: int  # elements of a key
    v_dim: int  # elements of a value
    window: int  # sliding window in tokens, 0 for none


class KVCache:
    """`pool` is [num_blocks, elements of a block], of `pool_dtype`; `key(layer)` and `value(layer)`
    are views [num_blocks, block_size, kv_heads, dim] into it. Where the layout says that these are
    codes, `key_scale` and `value_scale` are views [num_blocks, block_size, kv_heads], bfloat16.

    kind: which codes, by `kv_codes.NUMBERS`; 0 for none
    """

    def __init__(self, layout: KVLayout, pool: torch.Tensor) -> None:
        if pool.shape[1] != (needed := block_elements(layout)):
            raise ConfigError(
                f"the KV pool has {pool.shape[1]} elements per block, the layout needs {needed}"
            )
        self.layout = layout
        self.pool = pool
        self.kind = NUMBERS.get(layout.dtype, 0)
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        self._windows: dict[int, int] = {}
        offset = 0
        for group in layout.groups:
            for layer in group.layers:
                self._windows[layer] = group.window
                self._keys[layer] = self._view(offset, group.kv_heads, group.k_dim)
                offset += layout.block_size * group.kv_heads * group.k_dim
                self._values[layer] = self._view(offset, group.kv_heads, group.v_dim)
                offset += layout.block_size * group.kv_heads * group.v_dim
        self._scales = _scales(layout, pool, _aligned(offset)) if self.kind else {}
        self._places = {layer: self._place(layer) for layer in self._keys}

    def _view(self, offset: int, heads: int, dim: int) -> torch.Tensor:
        size = self.layout.block_size
        flat = self.pool[:, offset : offset + size * heads * dim]
        return flat.view(-1, size, heads, dim)

    @property
    def num_blocks(self) -> int:
        return self.pool.shape[0]

    @property
    def block_size(self) -> int:
        return self.layout.block_size

    @property
    def key_bytes(self) -> int:
        """Bytes of a layer's keys of one token when they are read, codes as float32; of the largest
        where layers differ."""
        sizes = (group.kv_heads * group.k_dim for group in self.layout.groups)
        return max(sizes) * (4 if self.kind else self.pool.element_size())

    def key(self, layer: int) -> torch.Tensor:
        return self._keys[layer]

    def value(self, layer: int) -> torch.Tensor:
        return self._values[layer]

    def key_scale(self, layer: int) -> torch.Tensor:
        return self._scales[layer][0]

    def value_scale(self, layer: int) -> torch.Tensor:
        return self._scales[layer][1]

    def place(self, layer: int) -> LayerPlace:
        """Where a layer lies in a block, for kernels."""
        return self._places[layer]

    def _place(self, layer: int) -> LayerPlace:
        key, value = self._keys[layer], self._values[layer]
        # Kernels count from the pool's address, which has its offset within the storage in it.
        begin = int(self.pool.storage_offset())
        keys, values = (int(view.storage_offset()) - begin for view in (key, value))
        begin //= SCALE.itemsize
        scales = [int(view.storage_offset()) - begin for view in self._scales.get(layer, ())]
        key_scales, value_scales = scales or (0, 0)
        _, _, kv_heads, k_dim = key.shape
        return LayerPlace(
            keys, values, key_scales, value_scales, kv_heads, k_dim, value.shape[3],
            self._windows[layer],
        )  # fmt: skip

    def window(self, layer: int) -> int:
        """Sliding window of a layer in tokens, 0 for none."""
        return self._windows[layer]

    def write(
        self,
        layer: int,
        blocks: torch.Tensor,
        offsets: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> None:
        """Store [T, kv_heads, dim] keys and values at (blocks[t], offsets[t])."""
        if self.kind:
            scales = self._scales[layer]
            key, scales[0][blocks, offsets] = encoded(key, self.kind)
            value, scales[1][blocks, offsets] = encoded(value, self.kind)
        self._keys[layer][blocks, offsets] = key
        self._values[layer][blocks, offsets] = value

    def read(
        self, layer: int, blocks: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [N, block_size, kv_heads, dim] of blocks int64[N]; those that are codes
        become `dtype`."""
        # On a CPU indexing by brackets took three times as long (524 µs beside 175).
        key, value = (views[layer].index_select(0, blocks) for views in (self._keys, self._values))
        if not self.kind:
            return key, value
        scales = [view.index_select(0, blocks) for view in self._scales[layer]]
        return (
            decoded(key, scales[0], self.kind, dtype),
            decoded(value, scales[1], self.kind, dtype),
        )


def _scales(
    layout: KVLayout, pool: torch.Tensor, first: int
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Views of each layer's scales, of keys and of values, from byte `first` of a block on."""
    flat, offset = pool.view(SCALE), first // SCALE.itemsize
    found = {}
    for group in layout.groups:
        count = layout.block_size * group.kv_heads
        for layer in group.layers:
            parts = flat[:, offset : offset + count], flat[:, offset + count : offset + 2 * count]
            keys, values = (part.view(-1, layout.block_size, group.kv_heads) for part in parts)
            found[layer] = keys, values
            offset += 2 * count
    return found


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def pool_dtype(layout: KVLayout) -> torch.dtype:
    """Element type of a pool: bytes where it holds codes and scales."""
    return torch.uint8 if layout.dtype in NUMBERS else DTYPES[layout.dtype]


def block_elements(layout: KVLayout) -> int:
    """Elements of one block of a pool over all layers, keys and values."""
    elements = layout.block_bytes(itemsize=1)
    if layout.dtype not in NUMBERS:
        return elements
    scales = sum(2 * len(group.layers) * group.kv_heads for group in layout.groups)
    return _aligned(elements) + _aligned(scales * layout.block_size * SCALE.itemsize)


def block_bytes(layout: KVLayout) -> int:
    return block_elements(layout) * pool_dtype(layout).itemsize
