"""Paged attention as transformers' models call it, and its reference in plain PyTorch.

`register()` puts it into transformers' `AttentionInterface` under `PAGED`. Models then call
`paged_attention` in every layer with [1, heads, T, dim] tensors and the step's `PagedBatch` as
keyword `paged`. A mask function is not registered: transformers builds no mask for it then, and
visibility is computed here from positions, spans and windows.

Who computes is an `AttentionBackend`: `TorchAttention` here, `TritonAttention` on CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from services.engine.attention.batch import AttentionBackend, PagedBatch
from services.engine.attention.kv_cache import KVCache

PAGED = "triptych_paged"


def register() -> None:
    """Make `PAGED` known to transformers. Safe to call more than once."""
    AttentionInterface.register(PAGED, paged_attention)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged: PagedBatch,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Write this step's keys and values, then attend over each request's whole context.

    query [1, heads, T, k_dim], key [1, kv_heads, T, k_dim], value [1, kv_heads, T, v_dim];
    `s_aux` [heads] are attention sinks. Returns [1, T, heads, v_dim].
    """
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    backend = paged.backend or backend_for(query.device)
    backend.write(key[0], value[0], layer, paged)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return backend.attend(query[0], layer, paged, scale, softcap, s_aux).unsqueeze(0), None


@cache
def backend_for(device: torch.device) -> AttentionBackend:
    """Triton kernels on CUDA where Triton is installed, plain PyTorch elsewhere."""
    if device.type != "cuda" or find_spec("triton") is None:
        return TorchAttention()
    from services.engine.attention.triton_backend import TritonAttention

    return TritonAttention.for_device(device)


@dataclass(frozen=True)
class TorchAttention:
    """Works on every device and is what the kernels are compared with."""

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: int, batch: PagedBatch) -> None:
        keys, values = key.transpose(0, 1), value.transpose(0, 1)
        batch.cache.write(layer, batch.slot_blocks, batch.slot_offsets, keys, values)

    def attend(
        self,
        query: torch.Tensor,
        layer: int,
        batch: PagedBatch,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        attend = _attend_decode if batch.decode_only else _attend_packed
        return attend(query, layer, batch, scale, softcap, sinks)


def _attend_packed(
    query: torch.Tensor,
    layer: int,
    batch: PagedBatch,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """One request at a time. query [heads, T, k_dim] → [T, heads, v_dim]."""
    outputs = []
    for r, context in enumerate(batch.context_lens):
        tokens = slice(batch.query_starts[r], batch.query_starts[r + 1])
        key, value = _gather(batch.cache, layer, batch.block_tables[r : r + 1], context)
        mask = _visible(batch, tokens, context, batch.cache.window(layer))
        out = _attend(query[None, :, tokens], key, value, mask[None, None], scale, softcap, sinks)
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


def _attend_decode(
    query: torch.Tensor,
    layer: int,
    batch: PagedBatch,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """All requests at once, one token each. query [heads, R, k_dim] → [R, heads, v_dim]."""
    longest = max(batch.context_lens)
    key, value = _gather(batch.cache, layer, batch.block_tables, longest)
    index = torch.arange(longest, device=query.device)
    last = batch.positions[:, None]
    mask = index <= last
    window = batch.cache.window(layer)
    if window:
        mask &= index > last - window
    out = _attend(
        query.transpose(0, 1).unsqueeze(2), key, value, mask[:, None, None], scale, softcap, sinks
    )
    return out.squeeze(2)


def _gather(
    cache: KVCache, layer: int, tables: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """First `length` keys and values of each of R requests: [R, kv_heads, length, dim] each."""
    blocks = tables[:, : -(-length // cache.block_size)]
    key = cache.key(layer)[blocks].flatten(1, 2)[:, :length]
    value = cache.value(layer)[blocks].flatten(1, 2)[:, :length]
    return key.transpose(1, 2), value.transpose(1, 2)


def _visible(batch: PagedBatch, tokens: slice, context: int, window: int) -> torch.Tensor:
    """bool[tokens, context]: which keys each query token may see."""
    position = batch.positions[tokens, None]
    index = torch.arange(context, device=position.device)
    mask = index <= position
    if window:
        mask &= index > position - window
    if batch.span_starts is not None and batch.span_ends is not None:
        mask |= (index >= batch.span_starts[tokens, None]) & (index < batch.span_ends[tokens, None])
    return mask


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax attention with grouped heads.

    query [R, heads, Q, k_dim], key and value [R, kv_heads, K, dim], mask broadcastable to
    [R, heads, Q, K]. Returns [R, heads, Q, v_dim].
    """
    if softcap is None and sinks is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale, enable_gqa=True
        )
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query @ key.transpose(-1, -2)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        sink = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, sink.to(scores.dtype)), dim=-1)
    weights = torch.softmax(scores.float(), dim=-1).to(value.dtype)
    return weights[..., : key.shape[2]] @ value
