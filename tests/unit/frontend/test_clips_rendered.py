"""Requests with clips, as they become token ids and items."""

import sys
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ConfigError, InvalidRequest, PayloadTooLarge
from protocol.generate import encode_item
from protocol.types import FrameSampling
from services.frontend.options import FrontendOptions
from tests.support.clips import DrawnClip, clip
from tests.support.frontend_helpers import (
    Fronts,
    Json,
    data_url,
    frontend,
    frontends,
    image_part,
    picture,
    render,
    user,
    write_model,
)
from tests.support.video_reference import grid_of, sample

DRAWN = clip(1, frames=40, rate=4, size=(120, 90))
SMALL = {"max_pixels": 4 * 28**2}
FIELD = "messages[0].content[1].video_url.url"


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Fronts:
    return frontends(tmp_path_factory.mktemp("models"))


def clip_part(drawn: DrawnClip | bytes, **fields: Any) -> Json:
    data = drawn.data if isinstance(drawn, DrawnClip) else drawn
    return {"type": "video_url", "video_url": {"url": data_url(data)}, **fields}


def refusal(fronts: Fronts, *parts: Any, code: str = "invalid_video", **options: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        render(fronts(**options), user("What?", *parts))
    assert (caught.value.param, caught.value.code) == (FIELD, code)
    return caught.value.message


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_a_clip_beside_a_picture(family: str, fronts: Fronts) -> None:
    front = fronts(family)
    messages = user("a", clip_part(DRAWN), "b", image_part(picture()), "c")
    rendered = render(front, messages)
    first, second = rendered.generate.mm_items
    assert (first.modality, second.modality) == ("video", "image")
    truth = sample(40, 4.0, fps=2.0, max_frames=40)
    size = {"shortest_edge": 4 * 28**2, "longest_edge": 112**2}
    assert first.grid == grid_of(len(truth.frames_indices), 120, 90, size=size)
    assert first.seconds_per_grid == 2 / truth.sampled_fps == 1.0
    ids = rendered.generate.token_ids
    for item in (first, second):
        pad = front.family.placeholders[item.modality].pad_id
        spans = [place for place, token in enumerate(ids) if token == pad]
        assert spans == list(range(item.offset, item.end))
    assert rendered.media[first.mm_hash] == DRAWN.data
    asked = encode_item(first, DRAWN.data)
    assert asked.frames == FrameSampling(max_frames=40)
    assert front.name_of(DRAWN.data, asked.pixels, "video", asked.frames) == first.mm_hash


def test_a_clip_whose_frames_stand_apart(fronts: Fronts) -> None:
    """Qwen3-VL reads when each is shown."""
    front = fronts("qwen3_vl")
    rendered = render(front, user("a", clip_part(DRAWN), "b", image_part(picture()), "c"))
    clip_item, image_item = rendered.generate.mm_items
    t, h, w = clip_item.grid
    ids = rendered.generate.token_ids
    assert t == 10 and clip_item.length == t * h * w // 4 and image_item.gaps == ()
    for item in (clip_item, image_item):
        pad = front.family.placeholders[item.modality].pad_id
        assert [place for place, token in enumerate(ids) if token == pad] == [
            place for first, last in item.runs for place in range(first, last)
        ]
    between = ids[clip_item.runs[0][1] : clip_item.runs[1][0]]
    said = front.tokenizer.decode(between, skip_special_tokens=False)
    assert said == "<|vision_end|><1.2 seconds><|vision_start|>"
    embeds = {"type": "video_embeds", "video_embeds": {"video_grid_thw": [t, h, w]}, "uuid": "ab"}
    with pytest.raises(InvalidRequest):
        render(front, user({**embeds, "uuid": clip_item.mm_hash}))
    (first,) = render(front, user(clip_part(DRAWN, uuid="c"))).generate.mm_items
    named = user({"type": "video_url", "video_url": None, "uuid": "c"})
    (again,) = render(front, named).generate.mm_items
    assert (again.mm_hash, again.gaps) == (first.mm_hash, first.gaps)


def test_what_is_asked_for_is_another_item(fronts: Fronts) -> None:
    front, messages = fronts(), user(clip_part(DRAWN))
    (usual,) = render(front, messages).generate.mm_items
    lengths = {usual.mm_hash: usual.length}
    for kwargs in ({"fps": 1}, {"num_frames": 6}, {"videos_kwargs": {"max_pixels": 4 * 28**2}}):
        (item,) = render(front, messages, mm_processor_kwargs=kwargs).generate.mm_items
        lengths[item.mm_hash] = item.length
        assert item.length < usual.length
    assert len(lengths) == 4
    (same,) = render(front, messages, mm_processor_kwargs={"fps": 2.0}).generate.mm_items
    assert same == usual
    (item,) = render(front, messages, mm_processor_kwargs={"num_frames": 6}).generate.mm_items
    assert item.grid[0] == 3


@pytest.mark.parametrize(
    ("configured", "asked", "frames", "most"),
    [
        ({"videos_kwargs": SMALL}, {"fps": 1}, 10, 4 * 28**2),
        ({"videos_kwargs": {"fps": 4}}, {"videos_kwargs": SMALL}, 40, 4 * 28**2),
        ({"videos_kwargs": {"num_frames": 4}}, {"fps": 1}, 10, 112**2),
        ({}, {"fps": 1, "videos_kwargs": SMALL}, 10, 4 * 28**2),
        ({}, {"fps": 1, "videos_kwargs": {"num_frames": 6}}, 6, 112**2),
        ({}, {**SMALL, "videos_kwargs": {"max_pixels": 112**2}}, 20, 112**2),
    ],
)
def test_options_at_two_places(
    configured: Json, asked: Json, frames: int, most: int, fronts: Fronts
) -> None:
    """What a request says is added to what the flag says, and what is said of clips alone to what
    is said of all."""
    front = fronts(mm_processor_kwargs=configured)
    request = render(front, user(clip_part(DRAWN)), mm_processor_kwargs=asked)
    (item,) = request.generate.mm_items
    t, h, w = item.grid
    assert t * 2 == frames
    assert most * 0.4 < h * w * 14**2 <= most


@pytest.mark.parametrize(
    "kwargs",
    [
        {"fps": 0},
        {"fps": "2"},
        {"num_frames": 0},
        {"fps": 1, "num_frames": 4},
        {"num_frames": 11},
        {"videos_kwargs": {"max_frames": 11}},
        {"videos_kwargs": {"fsp": 1}},
    ],
)
def test_options_that_are_wrong_or_too_much(kwargs: Json, fronts: Fronts) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(fronts(max_video_frames=10), user(clip_part(DRAWN)), mm_processor_kwargs=kwargs)
    assert (caught.value.param or "").startswith("mm_processor_kwargs")


def test_frames_as_vllm_asks_for_them(fronts: Fronts) -> None:
    """`media_io_kwargs`; of both the fewer, and `mm_processor_kwargs` go before them."""
    front, messages = fronts(), user(clip_part(DRAWN))
    for asked, same in (
        ({"video": {"fps": 1}}, {"fps": 1}),
        ({"video": {"num_frames": 6}}, {"num_frames": 6}),
        ({"video": {"fps": 1, "num_frames": 6}}, {"fps": 1, "max_frames": 6}),
        ({"video": {"fps": 0.5, "num_frames": 2}}, {"fps": 0.5, "min_frames": 2, "max_frames": 2}),
        ({"video": {}}, {}),
        ({}, {}),
    ):
        items = render(front, messages, media_io_kwargs=asked).generate.mm_items
        assert items == render(front, messages, mm_processor_kwargs=same).generate.mm_items
    both = {"media_io_kwargs": {"video": {"num_frames": 6}}, "mm_processor_kwargs": {"fps": 1}}
    (item,) = render(front, messages, **both).generate.mm_items
    assert item.grid[0] == 5


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"video": {"fps": 0}}, "media_io_kwargs.video.fps"),
        ({"video": {"num_frames": 11}}, "media_io_kwargs.video.num_frames"),
        ({"video": {"backend": "x"}}, "media_io_kwargs.video.backend"),
        ({"audio": {}}, "media_io_kwargs.audio"),
    ],
)
def test_frames_that_vllm_would_not_take(asked: Json, param: str, fronts: Fronts) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(fronts(max_video_frames=10), user(clip_part(DRAWN)), media_io_kwargs=asked)
    assert caught.value.param == param


def test_flags(fronts: Fronts) -> None:
    messages = user(clip_part(DRAWN))
    (few,) = render(fronts(max_video_frames=10), messages).generate.mm_items
    (slow,) = render(fronts(video_fps=0.5), messages).generate.mm_items
    (told,) = render(fronts(mm_processor_kwargs={"num_frames": 8}), messages).generate.mm_items
    assert [item.grid[0] for item in (few, slow, told)] == [5, 2, 4]
    config = FrontendOptions(model="demo", video_fps=1.5, max_video_frames=64).to_config()
    assert (config.video_fps, config.max_video_frames) == (1.5, 64)
    assert config.media.max_video_seconds == 600.0
    for wrong in ({"video_fps": 0.0}, {"max_video_frames": 1}, {"max_video_duration": 0.0}):
        with pytest.raises(ConfigError, match=f"--{next(iter(wrong)).replace('_', '-')}"):
            FrontendOptions(model="demo", **wrong).to_config()


def test_clips_that_are_refused_name_their_field(fronts: Fronts) -> None:
    assert "known format" in refusal(fronts, clip_part(picture()))
    assert "known format" in refusal(fronts, clip_part(picture() + bytes(1 << 20)))
    half = DRAWN.data[: len(DRAWN.data) // 2]
    assert "was cut off" in refusal(fronts, clip_part(half))
    short = {"max_video_seconds": 2.0}
    assert "lasts 10.0 s" in refusal(fronts, clip_part(DRAWN), media=short)
    small = {"max_pixels": 100}
    assert "more than 100 (--max-media-pixels)" in refusal(fronts, clip_part(DRAWN), media=small)
    thin = clip(3, size=(4000, 16))
    assert "200-fold" in refusal(fronts, clip_part(thin))
    with pytest.raises(PayloadTooLarge) as caught:
        render(fronts(media={"max_bytes": 1000}), user("x", clip_part(DRAWN)))
    assert caught.value.param == FIELD
    with pytest.raises(InvalidRequest, match="tokens or more"):
        render(fronts(max_model_len=100), user(clip_part(DRAWN)))


def test_models_without_clips(fronts: Fronts) -> None:
    for family in ("gemma3", "qwen3"):
        with pytest.raises(InvalidRequest) as caught:
            render(fronts(family), user("x", clip_part(DRAWN)))
        assert caught.value.code == "unsupported_media"
    with pytest.raises(InvalidRequest) as caught:
        render(fronts("qwen3_vl", allow_clips=False), mm_processor_kwargs={"fps": 1})
    assert caught.value.param == "mm_processor_kwargs.fps"
    with pytest.raises(ConfigError, match="--mm-processor-kwargs"):
        fronts("qwen3_vl", allow_clips=False, mm_processor_kwargs={"fps": 1})


def test_without_the_library(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    said = refusal(fronts, clip_part(DRAWN), code="unsupported_media")
    assert "triptych[video]" in said


def test_a_clip_by_its_uuid_or_metadata(fronts: Fronts) -> None:
    front = fronts(max_references=8)
    (sent,) = render(front, user(clip_part(DRAWN, uuid="c"))).generate.mm_items
    named = user({"type": "video_url", "video_url": None, "uuid": "c"})
    (found,) = render(front, named).generate.mm_items
    assert (found.mm_hash, found.grid, found.seconds_per_grid) == (
        sent.mm_hash, sent.grid, sent.seconds_per_grid,
    )  # fmt: skip
    picture_of_it = user({"type": "image_url", "image_url": None, "uuid": "c"})
    with pytest.raises(InvalidRequest, match="no picture with the uuid"):
        render(front, picture_of_it)
    metadata = {"video_grid_thw": list(sent.grid), "second_per_grid_ts": sent.seconds_per_grid}
    embeds = {"type": "video_embeds", "video_embeds": metadata, "uuid": sent.mm_hash}
    (told,) = render(front, user(embeds)).generate.mm_items
    assert (told.mm_hash, told.length, told.seconds_per_grid) == (
        sent.mm_hash, sent.length, sent.seconds_per_grid,
    )  # fmt: skip
    for wrong in ({"video_grid_thw": [1, 3, 4]}, {**metadata, "second_per_grid_ts": "1"}):
        with pytest.raises(InvalidRequest):
            render(front, user({**embeds, "video_embeds": wrong}))


def test_media_tokens_in_a_text_stay_text(fronts: Fronts) -> None:
    front = fronts()
    request = render(front, user("<|video_pad|>", clip_part(DRAWN), "<|image_pad|>")).generate
    (item,) = request.mm_items
    pads = {placeholder.pad_id for placeholder in front.family.placeholders.values()}
    assert sum(token in pads for token in request.token_ids) == item.length


def test_an_operator_may_refuse_clips(fronts: Fronts) -> None:
    said = refusal(fronts, clip_part(DRAWN), code="unsupported_media", allow_clips=False)
    assert said == "this server takes no video input with --no-allow-clips"
    assert FrontendOptions(model="demo").to_config().allow_clips


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"patch_size": "14"}', "the video processor's patch_size must be a whole number"),
        ('{"resample": 1}', "the video processor's resample must be 2 or 3"),
        ('{"do_normalize": false}', "the video processor must rescale and normalize"),
        ('{"size": {"height": 5}}', "the video processor's size needs 'shortest_edge'"),
        ("[]", "not a JSON object"),
    ],
)
def test_a_model_whose_clips_are_not_known_here_has_its_pictures(
    content: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = write_model("qwen2_5_vl", tmp_path)
    (model / "video_preprocessor_config.json").write_text(content)
    front = frontend(model)
    assert "clips are refused: " in caplog.text and said in caplog.text
    assert render(front, user("x", image_part(picture()))).generate.mm_items
    with pytest.raises(InvalidRequest, match=said) as caught:
        render(front, user("x", clip_part(DRAWN)))
    assert (caught.value.param, caught.value.code) == (FIELD, "unsupported_media")
    assert str(model) not in caught.value.message


def test_a_clip_of_too_many_tokens(fronts: Fronts) -> None:
    (item,) = render(fronts(), user("x", clip_part(DRAWN))).generate.mm_items
    enough, less = item.length, item.length - 1
    front = fronts(max_video_tokens=enough)
    (same,) = render(front, user("x", clip_part(DRAWN))).generate.mm_items
    assert same.length == enough
    said = refusal(fronts, clip_part(DRAWN), max_video_tokens=less)
    assert f"becomes {enough} tokens, the most is {less} (--max-video-tokens)" in said
