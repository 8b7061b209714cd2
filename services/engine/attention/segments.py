"""Attention of a vision tower over packed patches, where a patch sees only those of its segment: of
its picture, or of its window of a picture.

transformers calls attention once per segment, which for a picture of 1080p are about 180 in a layer
with windows. Only attention of a name with "flash" is handed the boundaries instead. `register()`
puts such a one into transformers' `AttentionInterface` under `SEGMENTED`; it computes all segments
of one length together, and windows have four lengths at most: whole ones and those of the edges.
On a GPU PyTorch's attention of variable length takes segments of several lengths at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from services.engine.attention.prompt_tiles import as_tiles, attend_tiles

_LONG = 256  # patches from which on tiles are faster than PyTorch's attention
_VARIABLE = (torch.bfloat16, torch.float16)
SEGMENTED = "triptych_flash_segments"


def register() -> None:
    """Make `SEGMENTED` known to transformers. Safe to call more than once."""
    AttentionInterface.register(SEGMENTED, segmented_attention)


@dataclass(frozen=True)
class SegmentGroup:
    """`count` segments of `length` patches each. rows: int64[count * length], their patches, one
    segment after the other; None if these are all patches in order."""

    count: int
    length: int
    rows: torch.Tensor | None


class Segments:
    """The segments of one run of the tower. Layers that share boundaries share the groups; the run
    passes this on to them as keyword `segments`."""

    def __init__(self) -> None:
        # The boundaries are kept, so that no two have one identity.
        self._groups: dict[int, tuple[torch.Tensor, list[SegmentGroup]]] = {}

    def groups(self, starts: torch.Tensor) -> list[SegmentGroup]:
        """starts: int[S + 1], the first patch of each of S segments, and the number of patches."""
        if id(starts) not in self._groups:
            self._groups[id(starts)] = starts, _grouped(starts)
        return self._groups[id(starts)][1]


def _grouped(starts: torch.Tensor) -> list[SegmentGroup]:
    firsts, lengths = starts[:-1].long(), starts.diff().long()
    # Waits for a GPU to come so far; once for each set of boundaries of a run, not in each layer.
    found = sorted(set(lengths.tolist()) - {0})
    if len(found) == 1 and bool((lengths > 0).all()):
        return [SegmentGroup(len(lengths), found[0], None)]
    return [_group(firsts[lengths == length], length) for length in found]


def _group(firsts: torch.Tensor, length: int) -> SegmentGroup:
    rows = firsts[:, None] + torch.arange(length, device=firsts.device)
    return SegmentGroup(len(firsts), length, rows.flatten())


def segmented_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    segments: Segments,
    cu_seq_lens_q: torch.Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query, key and value [1, heads, patches, dim] → [1, patches, heads, dim]."""
    patches = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    groups = segments.groups(cu_seq_lens_q)
    if len(groups) == 1 and groups[0].rows is None:
        return _attend(patches, groups[0], scaling)[None], None
    if _of_variable_length(patches[0]):
        starts, most = cu_seq_lens_q.int(), max(group.length for group in groups)
        several = varlen_attn(
            patches[0], patches[1], patches[2], starts, starts, most, most, scale=scaling
        )
        assert torch.is_tensor(several)  # and no auxiliary outputs
        return several[None], None
    out = torch.empty_like(patches[0], memory_format=torch.contiguous_format)
    for group in groups:
        out[group.rows] = _attend([tensor[group.rows] for tensor in patches], group, scaling)
    return out[None], None


def _of_variable_length(query: torch.Tensor) -> bool:
    """Whether PyTorch's attention of variable length, which is flash attention, takes it."""
    able = query.is_cuda and query.dtype in _VARIABLE
    return able and torch.cuda.get_device_capability(query.device) >= (8, 0)


def _attend(
    patches: list[torch.Tensor], group: SegmentGroup, scaling: float | None
) -> torch.Tensor:
    """Query, key and value, [count * length, heads, dim] each → the same shape."""
    query, key, value = (
        tensor.unflatten(0, (group.count, group.length)).transpose(1, 2) for tensor in patches
    )
    if group.length >= _LONG and as_tiles(query):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        tiles = (
            attend_tiles(*each, scale, causal=False) for each in zip(query, key, value, strict=True)
        )
        return torch.cat(list(tiles))
    out = F.scaled_dot_product_attention(query, key, value, scale=scaling)
    return out.transpose(1, 2).flatten(0, 1)
