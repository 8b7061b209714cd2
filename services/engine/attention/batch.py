"""The tensors of one step, packed: tokens of all scheduled requests one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

import torch

from services.engine.attention.decode_groups import DecodeGroup, decode_groups
from services.engine.attention.kv_cache import KVCache

_T = TypeVar("_T")


class AttentionBackend(Protocol):
    """How attention is computed: plain PyTorch, or kernels of a device."""

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: int, batch: PagedBatch) -> None:
        """Store [kv_heads, T, dim] keys and values in the batch's slots."""

    def attend(
        self,
        query: torch.Tensor,
        layer: int,
        batch: PagedBatch,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """query [heads, T, k_dim] → [T, heads, v_dim] over each request's whole context."""


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
    span_starts, span_ends: int64[T], the media span in which a token sees those behind it,
        too, (0, 0) outside; None when no token has one
    windowed_spans: whether spans count in layers with a window alone
    backend: what computes attention; None for what suits the device
    starts, contexts: int32[R + 1] and int32[R], `query_starts` and `context_lens` on the device;
        None to copy them there when a kernel asks for them
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
    windowed_spans: bool = False
    backend: AttentionBackend | None = None
    starts: torch.Tensor | None = None
    contexts: torch.Tensor | None = None
    _plans: dict[object, Any] = field(default_factory=dict)

    @property
    def num_requests(self) -> int:
        return len(self.context_lens)

    def spans(self, window: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """`span_starts` and `span_ends` in a layer with this `window`, 0 for none."""
        if self.windowed_spans and not window:
            return None, None
        return self.span_starts, self.span_ends

    @property
    def decode_only(self) -> bool:
        """True if every request brings exactly one token."""
        return self.query_starts[-1] == self.num_requests

    @property
    def single_contexts(self) -> list[int]:
        """Context lengths of the requests that bring one token."""
        if self.decode_only:
            return self.context_lens
        starts = self.query_starts
        return [c for r, c in enumerate(self.context_lens) if starts[r + 1] - starts[r] == 1]

    @cached_property
    def prompts(self) -> list[int]:
        """Requests that are attended on their own: those that bring several tokens, and all of a
        step with media spans, in which a single token may see further than its own place."""
        if self.decode_only:
            return []
        starts = self.query_starts
        every = self.span_starts is not None
        return [r for r in range(self.num_requests) if every or starts[r + 1] - starts[r] > 1]

    @cached_property
    def decode_groups(self) -> list[DecodeGroup]:
        """All other requests, see `prompts`."""
        prompts = set(self.prompts)
        chosen = [r for r in range(self.num_requests) if r not in prompts]
        return decode_groups(
            [self.query_starts[r] for r in chosen],
            [self.context_lens[r] for r in chosen],
            self.block_tables[chosen],
            self.positions,
            self.cache.block_size,
            self.cache.key_bytes,
        )

    def planned(self, key: object, make: Callable[[], _T]) -> _T:
        """What a backend works out once a step and uses in every layer; `make` makes it."""
        if key not in self._plans:
            self._plans[key] = make()
        return self._plans[key]  # type: ignore[no-any-return]

    @cached_property
    def starts_tensor(self) -> torch.Tensor:
        """int32[R + 1]: `query_starts` on the device, for kernels."""
        return self._on_device(self.query_starts) if self.starts is None else self.starts

    @cached_property
    def contexts_tensor(self) -> torch.Tensor:
        """int32[R]: `context_lens` on the device, for kernels."""
        return self._on_device(self.context_lens) if self.contexts is None else self.contexts

    def _on_device(self, values: list[int]) -> torch.Tensor:
        """Without waiting for the device, which may be at work on the layers before."""
        host = torch.tensor(values, dtype=torch.int32)
        return host.to(self.positions.device, non_blocking=True)
