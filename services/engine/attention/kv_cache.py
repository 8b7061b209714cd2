"""The paged KV cache: one pool of blocks, each block holding all layers of `block_size` tokens.

Block-major, so that a block is one contiguous run of bytes and moves between processes as one
descriptor, whatever the number of layers.
"""

from __future__ import annotations

import torch

from protocol.errors import ConfigError
from protocol.refs import KVLayout

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


class KVCache:
    """`pool` is [num_blocks, elements of a block]; `key(layer)` and `value(layer)` are views
    [num_blocks, block_size, kv_heads, dim] into it."""

    def __init__(self, layout: KVLayout, pool: torch.Tensor) -> None:
        self.layout = layout
        self.pool = pool
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
        if offset != pool.shape[1]:
            raise ConfigError(
                f"the KV pool has {pool.shape[1]} elements per block, the layout needs {offset}"
            )

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
        """Bytes of a layer's keys of one token; of the largest where layers differ."""
        sizes = (group.kv_heads * group.k_dim for group in self.layout.groups)
        return max(sizes) * self.pool.element_size()

    def key(self, layer: int) -> torch.Tensor:
        return self._keys[layer]

    def value(self, layer: int) -> torch.Tensor:
        return self._values[layer]

    def starts(self, layer: int) -> tuple[int, int]:
        """Where a layer's keys and its values begin in a block, in elements."""
        begin = int(self.pool.storage_offset())
        views = self._keys[layer], self._values[layer]
        keys, values = (int(view.storage_offset()) - begin for view in views)
        return keys, values

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
        self._keys[layer][blocks, offsets] = key
        self._values[layer][blocks, offsets] = value


def block_elements(layout: KVLayout) -> int:
    """Elements of one block over all layers, keys and values."""
    return layout.block_bytes(itemsize=1)


def block_bytes(layout: KVLayout) -> int:
    return layout.block_bytes(DTYPES[layout.dtype].itemsize)
