"""Requests with audio, as they become token ids and items."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.encoder_cache import item_metadata
from protocol.errors import ConfigError, InvalidRequest, PayloadTooLarge
from protocol.generate import encode_item
from tests.support import tiny_models
from tests.support.audio_files import audio_file, encoded, raw_wav, tones, wav
from tests.support.audio_reference import audio_inputs
from tests.support.clients import openai_messages
from tests.support.conversations import audio_cases
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

HEARD = audio_file(1)
PART = "messages[0].content[1]"


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Fronts:
    made = frontends(tmp_path_factory.mktemp("models"))
    return lambda family="qwen2_audio", **options: made(family, **options)


def inline(data: bytes, form: str = "wav", **fields: Any) -> Json:
    audio = {"data": base64.b64encode(data).decode(), "format": form}
    return {"type": "input_audio", "input_audio": audio, **fields}


def linked(data: bytes, **fields: Any) -> Json:
    return {"type": "audio_url", "audio_url": {"url": data_url(data)}, **fields}


def refusal(front: Any, part: Json, param: str = f"{PART}.input_audio.data") -> str:
    with pytest.raises(InvalidRequest) as caught:
        render(front, user("What?", part))
    assert (caught.value.param, caught.value.code) == (param, "invalid_audio")
    return caught.value.message


def test_token_ids_are_those_of_transformers(tmp_path: Path) -> None:
    model = tiny_models.build(tiny_models.AUDIO_FAMILY, tmp_path)
    front = frontend(model)
    for case in audio_cases():
        expected = audio_inputs(model, case)["input_ids"][0].tolist()
        rendered = render(front, openai_messages(case))
        assert rendered.generate.token_ids == expected
        pad = front.family.placeholders["audio"].pad_id
        assert rendered.output.audio_tokens == expected.count(pad)


def test_an_item_by_its_bytes(fronts: Fronts) -> None:
    front = fronts()
    rendered = render(front, user("a", inline(HEARD.data), "b", linked(audio_file(2).data)))
    first, second = rendered.generate.mm_items
    assert (first.modality, first.grid, first.length) == ("audio", (), 25)
    assert first.mm_hash != second.mm_hash and first.end < second.offset
    assert rendered.media[first.mm_hash] == HEARD.data
    asked = encode_item(first, HEARD.data)
    assert front.name_of(HEARD.data, asked.pixels, "audio", asked.frames) == first.mm_hash
    (same,) = render(front, user(linked(HEARD.data))).generate.mm_items
    assert same.mm_hash == first.mm_hash
    assert item_metadata(first) == {"num_audio_tokens": 25}


def test_another_rate_has_as_many_tokens(fronts: Fronts) -> None:
    heard = np.round(tones(1, 1.0, 44_100) * 32767).astype("<i2")
    (item,) = render(fronts(), user(inline(wav(heard, 44_100)))).generate.mm_items
    assert item.length == 25


def test_audio_by_its_uuid_or_metadata(fronts: Fronts) -> None:
    front = fronts(max_references=8)
    (sent,) = render(front, user(inline(HEARD.data, uuid="a"))).generate.mm_items
    named = user({"type": "input_audio", "input_audio": None, "uuid": "a"})
    (found,) = render(front, named).generate.mm_items
    assert (found.mm_hash, found.length) == (sent.mm_hash, sent.length)
    embeds = {"type": "audio_embeds", "audio_embeds": item_metadata(sent), "uuid": sent.mm_hash}
    (told,) = render(front, user(embeds)).generate.mm_items
    assert (told.mm_hash, told.length) == (sent.mm_hash, sent.length)
    for wrong in ({}, {"num_audio_tokens": 0}, {"num_audio_tokens": 51}, {"num_audio_tokens": "5"}):
        with pytest.raises(InvalidRequest):
            render(front, user({**embeds, "audio_embeds": wrong}))


def test_audio_that_is_refused_names_its_field(fronts: Fronts) -> None:
    front = fronts()
    assert "incomplete" in refusal(front, inline(HEARD.data[:9000]))
    assert "no audio" in refusal(front, inline(picture()))
    assert "no audio" in refusal(front, inline(bytes(2 << 20)))  # before all of it is decoded
    assert "lasts 2.01 s, this model hears 2 s" in refusal(front, inline(audio_file(1, 2.01).data))
    assert "too short" in refusal(front, inline(audio_file(1, 0.02).data))
    assert "192001 samples" in refusal(front, inline(wav(np.zeros(9, "<i2"), 192_001)))
    nan = np.full(4000, np.nan, np.float32).tobytes()
    assert "finite" in refusal(front, inline(raw_wav(nan, 3, 32)))
    said = f"{PART}.input_audio.format"
    assert "says 'mp3', but the data are WAV" in refusal(front, inline(HEARD.data, "mp3"), said)
    assert "format must be one of wav" in refusal(front, inline(HEARD.data, "x"), said)
    mp3 = encoded("mp3", "libmp3lame", seconds=2.1)
    assert "longer than the 2 s" in refusal(front, inline(mp3, "mp3"))
    assert "WAV only" in refusal(fronts(allow_clips=False), inline(mp3, "mp3"))
    assert "incomplete" in refusal(front, linked(HEARD.data[:9000]), f"{PART}.audio_url.url")


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "input_audio"}, f"{PART}.input_audio"),
        ({"type": "input_audio", "input_audio": None}, f"{PART}.input_audio"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, f"{PART}.input_audio"),
        ({"type": "input_audio", "input_audio": "AAAA"}, f"{PART}.input_audio"),
        (inline(b"") | {"input_audio": {"data": "?", "format": "wav"}}, f"{PART}.input_audio.data"),
        ({"type": "audio_url", "audio_url": "ftp://x/a.wav"}, f"{PART}.audio_url"),
        ({"type": "audio_url", "audio_url": {"url": "http://127.0.0.1/"}}, f"{PART}.audio_url.url"),
        ({"type": "audio_embeds", "audio_embeds": {}}, f"{PART}.uuid"),
        ({"type": "text", "text": "x", "audio": "y"}, f"{PART}.audio"),
    ],
)
def test_malformed_parts(part: Json, param: str, fronts: Fronts) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(fronts(), user("x", part))
    assert (caught.value.param or "").startswith(param)


def test_limits_of_media_hold_for_audio(fronts: Fronts) -> None:
    with pytest.raises(PayloadTooLarge) as large:
        render(fronts(media={"max_bytes": 1000}), user("x", inline(HEARD.data)))
    assert large.value.param == f"{PART}.input_audio.data"
    with pytest.raises(InvalidRequest, match="2 audio items") as many:
        render(fronts(limit_mm_per_prompt=1), user(inline(HEARD.data), inline(HEARD.data)))
    assert many.value.code == "too_many_media"
    with pytest.raises(InvalidRequest, match="tokens or more"):
        render(fronts(max_model_len=40), user(inline(HEARD.data)))


def test_models_that_do_not_take_it(fronts: Fronts) -> None:
    for family in ("qwen2_vl", "qwen3"):
        with pytest.raises(InvalidRequest, match="takes no audio") as caught:
            render(fronts(family), user("x", inline(HEARD.data)))
        assert (caught.value.param, caught.value.code) == (PART, "unsupported_media")
    with pytest.raises(InvalidRequest, match="takes no image"):
        render(fronts(), user("x", image_part(picture())))


def test_audio_tokens_in_a_text_stay_text(fronts: Fronts) -> None:
    front = fronts()
    request = render(front, user("<|AUDIO|>", inline(HEARD.data), "<|AUDIO|>")).generate
    (item,) = request.mm_items
    assert request.token_ids.count(front.family.placeholders["audio"].pad_id) == item.length


def test_the_newer_form_of_the_processor_s_file(tmp_path: Path, fronts: Fronts) -> None:
    model = write_model("qwen2_audio", tmp_path)
    file = model / "preprocessor_config.json"
    nested = {"feature_extractor": json.loads(file.read_text())}
    (model / "processor_config.json").write_text(json.dumps(nested))
    file.unlink()
    (item,) = render(frontend(model), user(inline(HEARD.data))).generate.mm_items
    assert item.length == 25
    nested["feature_extractor"]["chunk_length"] = 3
    (model / "processor_config.json").write_text(json.dumps(nested))
    with pytest.raises(ConfigError, match="300 columns, the model hears 200"):
        frontend(model)
    (model / "processor_config.json").unlink()
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json"):
        frontend(model)
