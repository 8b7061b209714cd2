"""The tensors of one step, packed: tokens of all scheduled requests one after another."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from services.engine.kv_cache import KVCache


@dataclass(frozen=True)
class PagedBatch:
    """What attention needs to know about a step of T tokens from R requests.

    It reaches every layer as a forward keyword, so no layer reads global state. Host lists stand
    beside device tensors where the CPU implementation loops over requests.

    cache: the paged KV cache of this engine
    slot_blocks: int64[T], block of the cache that token t is written to
    slot_offsets: int64[T], its place inside that block
    block_tables: int64[R, B], the blocks of each request, padded with 0
    query_starts: R + 1 offsets into the T tokens
    context_lens: R, tokens of KV each request has once this step's are written
    positions: int64[T], index of each token within its request
    span_starts, span_ends: int64[T], the media span in which a token sees every other token,
        (0, 0) outside; None when no token has one
    """

    cache: KVCache
    slot_blocks: torch.Tensor
    slot_offsets: torch.Tensor
    block_tables: torch.Tensor
    query_starts: list[int]
    context_lens: list[int]
    positions: torch.Tensor
    span_starts: torch.Tensor | None = None
    span_ends: torch.Tensor | None = None

    @property
    def num_requests(self) -> int:
        return len(self.context_lens)

    @property
    def decode_only(self) -> bool:
        """True if every request brings exactly one token."""
        return self.query_starts[-1] == self.num_requests
