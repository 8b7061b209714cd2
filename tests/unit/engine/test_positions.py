"""Positions of prompts with pictures and clips: those of transformers, for any mixture."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from protocol.errors import InvalidRequest
from protocol.types import MMItem
from services.engine.model.positions import mrope_positions

MERGE = 2
# Text tokens before it, whether it is a clip, its grid in tokens, seconds between two of its t.
MEDIA = st.tuples(
    st.integers(1, 9),
    st.booleans(),
    st.tuples(st.integers(1, 12), st.integers(1, 5), st.integers(1, 5)),
    st.sampled_from([0.2, 0.9666666666666667, 1.0, 1.0344827586206897, 5.0, 60.0]),
)
Media = tuple[int, bool, tuple[int, int, int], float]


def prompt_of(media: list[Media], behind: int, timed: bool = False) -> tuple[int, list[MMItem]]:
    """(tokens, items) of a prompt; `timed`: with text between the t of clips."""
    items: list[MMItem] = []
    place = 0
    for before, is_clip, (t, rows, columns), seconds in media:
        place += before
        t = t if is_clip else 1
        grid = (t, rows * MERGE, columns * MERGE)
        kind: Any = "video" if is_clip else "image"
        item = MMItem(f"h{place}", kind, place, t * rows * columns, grid)
        if is_clip:
            gaps = tuple(range(3, 2 + t)) if timed else ()
            pace = 0.0 if timed else seconds
            item = msgspec.structs.replace(item, gaps=gaps, seconds_per_grid=pace)
        items.append(item)
        place = item.end
    return place + behind, items


def truth(model: Any, tokens: int, items: list[MMItem]) -> Any:
    """int64[3, tokens]; what `generate()` adds goes on from the last."""
    kinds = torch.zeros(1, tokens, dtype=torch.int32)
    for item in items:
        for first, last in item.runs:
            kinds[0, first:last] = 2 if item.modality == "video" else 1
    clips = [item for item in items if item.modality == "video"]
    pictures = [item for item in items if item.modality == "image"]
    vision = SimpleNamespace(spatial_merge_size=MERGE, tokens_per_second=2)
    owner = SimpleNamespace(
        config=SimpleNamespace(vision_config=vision),
        get_vision_position_ids=partial(model.get_vision_position_ids, None),
    )
    options: dict[str, Any] = {}
    if model is Qwen2_5_VLModel:
        options["second_per_grid_ts"] = torch.tensor([item.seconds_per_grid for item in clips])
    positions, _ = model.get_rope_index(
        owner,
        torch.zeros(1, tokens, dtype=torch.int64),
        kinds,
        torch.tensor([item.grid for item in pictures]) if pictures else None,
        torch.tensor([item.grid for item in clips]) if clips else None,
        **options,
    )
    return positions[:, 0].numpy()


@pytest.mark.parametrize(("model", "per_second"), [(Qwen2VLModel, None), (Qwen2_5_VLModel, 2)])
@given(media=st.lists(MEDIA, max_size=4), behind=st.integers(1, 9))
@example(media=[(3, True, (12, 1, 1), 60.0)], behind=2)
@example(media=[(3, True, (12, 1, 1), 60.0), (1, False, (1, 5, 5), 1.0)], behind=9)
def test_positions_are_those_of_transformers(
    model: Any, per_second: float | None, media: list[Media], behind: int
) -> None:
    tokens, items = prompt_of(media, behind)
    positions, delta = mrope_positions(tokens, items, MERGE, per_second)
    expected = truth(model, tokens, items)
    assert np.array_equal(positions, expected)
    assert (expected[:, -1] + 1 == tokens + delta).all()


@given(media=st.lists(MEDIA, max_size=4), behind=st.integers(1, 9))
@example(media=[(3, True, (12, 1, 1), 60.0)], behind=2)
def test_positions_of_clips_whose_frames_stand_apart(media: list[Media], behind: int) -> None:
    tokens, items = prompt_of(media, behind, timed=True)
    positions, delta = mrope_positions(tokens, items, MERGE)
    expected = truth(Qwen3VLModel, tokens, items)
    assert np.array_equal(positions, expected)
    assert (expected[:, -1] + 1 == tokens + delta).all()


def test_gaps_that_are_not_the_grids() -> None:
    with pytest.raises(InvalidRequest, match="needs 1 gaps, not 3"):
        mrope_positions(20, [MMItem("h", "video", 1, 8, (2, 4, 4), gaps=(1, 1, 1))], 2)


def test_a_grid_that_is_not_the_spans() -> None:
    with pytest.raises(InvalidRequest, match="makes 2 tokens, its span has 3"):
        mrope_positions(5, [MMItem("h", "video", 1, 3, (2, 2, 2))], MERGE)
    with pytest.raises(InvalidRequest, match="needs a"):
        mrope_positions(5, [MMItem("h", "video", 1, 3)], MERGE)
