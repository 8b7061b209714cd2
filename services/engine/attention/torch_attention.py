"""Paged attention in plain PyTorch: it works on every device, and kernels are compared with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from services.engine.attention.batch import PagedBatch
from services.engine.attention.decode_groups import DecodeGroup
from services.engine.attention.kv_cache import KVCache
from services.engine.attention.prompt_tiles import LEAST_QUERIES, as_tiles, attend_tiles


class Scoring(NamedTuple):
    """How a layer makes weights of scores: `softcap` bounds them by tanh, None for no bound;
    `sinks` [heads] are scores of no token, None for none."""

    scale: float
    softcap: float | None
    sinks: torch.Tensor | None

    @property
    def plain(self) -> bool:
        """Whether a softmax of scaled scores is all of it."""
        return self.softcap is None and self.sinks is None


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
        value = batch.cache.value(layer)
        out = query.new_empty(query.shape[1], query.shape[0], value.shape[-1])
        scoring = Scoring(scale, softcap, sinks)
        self.attend_single(query, layer, batch, scoring, out)
        for request in batch.prompts:
            tokens = slice(batch.query_starts[request], batch.query_starts[request + 1])
            self.attend_prompt(query, layer, batch, request, scoring, out[tokens])
        return out

    def attend_prompt(
        self,
        query: torch.Tensor,
        layer: int,
        batch: PagedBatch,
        request: int,
        scoring: Scoring,
        out: torch.Tensor,
    ) -> None:
        """Fill out [T, heads, v_dim] for one request's T tokens of query [heads, all, k_dim]."""
        out.copy_(_attend_prompt(query, layer, batch, request, scoring))

    def attend_single(
        self,
        query: torch.Tensor,
        layer: int,
        batch: PagedBatch,
        scoring: Scoring,
        out: torch.Tensor,
    ) -> None:
        """Fill the rows of out [T, heads, v_dim] whose request brings that token alone."""
        for group in batch.decode_groups:
            out[group.rows] = _attend_group(query, layer, batch.cache, group, scoring)


def _attend_prompt(
    query: torch.Tensor,
    layer: int,
    batch: PagedBatch,
    request: int,
    scoring: Scoring,
) -> torch.Tensor:
    """One request's T tokens of query [heads, all tokens, k_dim] → [T, heads, v_dim]."""
    tokens = slice(batch.query_starts[request], batch.query_starts[request + 1])
    context = batch.context_lens[request]
    window = batch.cache.window(layer)
    blocks = batch.block_tables[request, : -(-context // batch.cache.block_size)]
    key, value = _gather(batch.cache, layer, blocks, 1, context, query.dtype)
    mine = query[None, :, tokens]
    causal = batch.span_starts is None and scoring.plain
    causal = causal and not 0 < window < context
    count = mine.shape[2]
    if causal and count >= LEAST_QUERIES and as_tiles(query):
        return attend_tiles(mine[0], key[0], value[0], scoring.scale)
    if causal and count == context:
        # Whole prompts alone: `is_causal` takes the first query for the token of the first key.
        # Without a mask PyTorch leaves out much of what is not seen.
        out = F.scaled_dot_product_attention(
            mine, key, value, is_causal=True, scale=scoring.scale, enable_gqa=True
        )
    else:
        mask = batch.planned(
            ("mask", request, window), lambda: _visible(batch, tokens, context, window)[None, None]
        )
        out = _attend(mine, key, value, mask, scoring)
    return out[0].transpose(0, 1)


def _attend_group(
    query: torch.Tensor,
    layer: int,
    cache: KVCache,
    group: DecodeGroup,
    scoring: Scoring,
) -> torch.Tensor:
    """G single tokens of query [heads, all tokens, k_dim] → [G, heads, v_dim]."""
    mine = query.transpose(0, 1)[group.rows]
    requests = len(group.contexts)
    key, value = _gather(
        cache, layer, group.blocks, requests, group.longest, query.dtype, group.padding
    )
    mask = group.mask(cache.window(layer))
    if not scoring.plain:
        out = _attend(mine.unsqueeze(2), key, value, mask, scoring)
        return out.squeeze(2)
    # The heads that share a KV head are its queries: with a query for each head PyTorch's CPU
    # kernel repacks the keys for every one of them, which took 9 times as long in bfloat16.
    folded = mine.unflatten(1, (key.shape[1], -1))
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scoring.scale)
    return out.flatten(1, 2)


def _gather(
    cache: KVCache,
    layer: int,
    blocks: torch.Tensor,
    requests: int,
    length: int,
    dtype: torch.dtype,
    padding: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """First `length` keys and values of so many requests, which have equally many of `blocks`:
    [requests, kv_heads, length, dim] each, codes as `dtype`, zeros for tokens of `padding`."""
    key, value = cache.read(layer, blocks, dtype)
    if padding is not None:
        # Slots past a context hold what memory held before: a weight of 0 does not hide NaN.
        for tensor in (key, value):
            tensor.view(-1, *tensor.shape[2:]).index_fill_(0, padding, 0)
    key, value = (
        tensor.view(requests, -1, *tensor.shape[2:])[:, :length] for tensor in (key, value)
    )
    return key.transpose(1, 2), value.transpose(1, 2)


def _visible(batch: PagedBatch, tokens: slice, context: int, window: int) -> torch.Tensor:
    """bool[tokens, context]: which keys each query token may see."""
    position = batch.positions[tokens, None]
    index = torch.arange(context, device=position.device)
    mask = index <= position
    first, end = batch.spans(window)
    if first is not None and end is not None:
        mask |= (index >= first[tokens, None]) & (index < end[tokens, None])
    if window:  # within a span, too, as transformers has it
        mask &= index > position - window
    return mask


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scoring: Scoring,
) -> torch.Tensor:
    """Softmax attention with grouped heads.

    query [R, heads, Q, k_dim], key and value [R, kv_heads, K, dim], mask broadcastable to
    [R, heads, Q, K], None if all is seen. Returns [R, heads, Q, v_dim].
    """
    scale, softcap, sinks = scoring
    if scoring.plain:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale, enable_gqa=True
        )
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query @ key.transpose(-1, -2)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        sink = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, sink.to(scores.dtype)), dim=-1)
    weights = torch.softmax(scores.float(), dim=-1).to(value.dtype)
    # A sink takes a share of the weights and has no value to give.
    return weights[..., : key.shape[2]] @ value
