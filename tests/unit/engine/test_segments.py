"""A vision tower attends all segments of one length at once, and each sees itself alone."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from protocol.types import EncodeItem
from services.engine.attention.segments import Segments, segmented_attention
from services.engine.model.vision import VisionModel
from tests.conftest import ModelDir
from tests.support.attention_calls import AttentionCalls
from tests.support.conversations import picture
from tests.support.engines import png

HEADS, DIM = 2, 8
LAYERS, WINDOW_LENGTHS = 3, 4  # of the tiny tower: whole windows, two edges and the corner


def tensors(patches: int) -> list[torch.Tensor]:
    """Query, key and value [1, heads, patches, dim], in the strides of a joint projection."""
    random = torch.Generator().manual_seed(patches)
    joint = torch.randn(patches, 3, HEADS, DIM, generator=random)
    return [part.transpose(0, 1)[None] for part in joint.unbind(1)]


def attend(
    starts: list[int], segments: Segments, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    query, key, value = (tensor.to(dtype) for tensor in tensors(starts[-1]))
    out, _ = segmented_attention(
        torch.nn.Module(),
        query,
        key,
        value,
        None,
        segments=segments,
        cu_seq_lens_q=torch.tensor(starts, dtype=torch.int32),
        scaling=0.3,
    )
    return out


@pytest.mark.parametrize(
    ("starts", "calls"),
    [
        ([0, 12], 1),
        ([0, 4, 8, 12], 1),
        ([0, 4, 8, 10, 14, 18, 20, 22, 24, 25], 3),
        ([0, 5, 5, 10], 1),  # one of no patches
    ],
)
def test_each_segment_sees_itself_alone(starts: list[int], calls: int) -> None:
    query, key, value = tensors(starts[-1])
    parts = [
        F.scaled_dot_product_attention(
            query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], scale=0.3
        )
        for a, b in pairwise(starts)
    ]
    with AttentionCalls() as counted:
        out = attend(starts, Segments())
    expected = torch.cat(parts, dim=2).transpose(1, 2)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-6)
    assert counted.count == calls


@pytest.mark.parametrize("starts", [[0, 300], [0, 256, 512], [0, 300, 310, 610]])
def test_long_segments_in_bfloat16_see_themselves_alone(starts: list[int]) -> None:
    query, key, value = (tensor.bfloat16().float() for tensor in tensors(starts[-1]))
    parts = [
        F.scaled_dot_product_attention(
            query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], scale=0.3
        )
        for a, b in pairwise(starts)
    ]
    with AttentionCalls() as counted:
        out = attend(starts, Segments(), torch.bfloat16)
    expected = torch.cat(parts, dim=2).transpose(1, 2)
    torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=2e-2)
    assert counted.count == (1 if 310 in starts else 0)  # those are attended in tiles


def test_layers_with_other_boundaries_do_not_share_groups() -> None:
    segments = Segments()
    assert not attend([0, 6, 12], segments).equal(attend([0, 12], segments))


def test_the_calls_of_a_run_do_not_grow_with_the_windows(model_dir: ModelDir) -> None:
    vision = VisionModel(model_dir("qwen2_5_vl"), torch.float32, "cpu", 1 << 24)
    pictures = [
        vision.prepare(EncodeItem(f"p{i}", "image", tokens, data=png(picture(i, *size))))
        for i, (size, tokens) in enumerate([((308, 420), 54), ((224, 224), 64)])
    ]
    with AttentionCalls() as counted:
        entries = vision.encode(pictures)
    assert all(isinstance(entry, dict) for entry in entries), entries
    # In the layer with full attention either picture is a segment.
    assert counted.count <= (LAYERS - 1) * WINDOW_LENGTHS + 2
