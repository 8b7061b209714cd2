"""The vision tower over a batch of equal grids: the same function as transformers', without its
loop over windows."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

Grid = tuple[int, int]  # merged tokens: rows, columns


def patchify(pixels: Tensor, processor: Qwen2VLImageProcessorPil) -> Tensor:
    """uint8 pictures [pictures, rows * 28, columns * 28, 3] to normalised patches
    [pictures, patches, 588], in the processor's order, one frame instead of two equal ones."""
    mean = torch.tensor(processor.image_mean, device=pixels.device)
    std = torch.tensor(processor.image_std, device=pixels.device)
    count, height, width, _ = pixels.shape
    values = (pixels / 255 - mean) / std
    values = values.view(count, height // 28, 2, 14, width // 28, 2, 14, 3)
    return values.permute(0, 1, 4, 2, 5, 7, 3, 6).reshape(count, -1, 588)


class BatchedVision(nn.Module):
    """Runs the weights of `visual` over pictures that share one grid."""

    def __init__(self, visual: nn.Module) -> None:
        super().__init__()
        self.visual = visual

    def forward(self, patches: Tensor, grid: Grid) -> Tensor:
        """Patches [pictures, rows * columns * 4, 588] to tokens [pictures, rows * columns, dim]."""
        visual: Any = self.visual
        weight = visual.patch_embed.proj.weight.sum(2).flatten(1)
        hidden = F.linear(patches.to(weight.dtype), weight)
        rows, columns = _patch_places(grid, patches.device)
        turns = visual.rotary_pos_emb(hidden, torch.stack([rows, columns], dim=-1))
        cos, sin = (turn.to(hidden.dtype) for turn in turns)
        window = _same_window(rows, columns, visual.window_size // visual.patch_size)
        for index, block in enumerate(visual.blocks):
            mask = None if index in visual.fullatt_block_indexes else window
            hidden = hidden + _attend(block.attn, block.norm1(hidden), cos, sin, mask)
            hidden = hidden + block.mlp(block.norm2(hidden))
        tokens: Tensor = visual.merger(hidden)
        return tokens.view(patches.shape[0], -1, tokens.shape[-1])


def _patch_places(grid: Grid, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column of every patch [patches], four patches of a merged token side by side."""
    rows, columns = grid
    places = torch.arange(4 * rows * columns, device=device).view(rows, columns, 2, 2)
    token, inner = places // 4, places % 4
    row = token // columns * 2 + inner // 2
    column = token % columns * 2 + inner % 2
    return row.flatten(), column.flatten()


def _same_window(rows: Tensor, columns: Tensor, side: int) -> Tensor:
    """Whether two patches share a window of `side` x `side` patches, bool [patches, patches]."""
    window = rows // side * 1000 + columns // side
    return window[:, None] == window[None, :]


def _attend(attention: Any, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
    """Self-attention over [pictures, patches, dim]; `cos`, `sin` are [patches, head_dim]."""
    pictures, patches, width = x.shape
    qkv = attention.qkv(x).view(pictures, patches, 3, attention.num_heads, -1)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
    # Written out: on a CPU the fused kernel's backward pass is several times slower in bf16.
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    out = scores.softmax(-1) @ value
    mixed: Tensor = attention.proj(out.transpose(1, 2).reshape(pictures, patches, width))
    return mixed


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
