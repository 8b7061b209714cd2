"""OpenAI requests at a mock worker as tokens, and what its configuration refuses."""

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ConfigError, InvalidRequest
from protocol.openai import decode_chat, decode_completion
from protocol.settings import resolve
from services.mock import status_api, tokens_api
from services.mock.chat import PLACEHOLDER, default_grid, render_chat, render_completion, text_of
from services.mock.config import MockConfig
from services.mock.faults import parse_faults
from services.mock.instance import Instance
from services.mock.main import main
from services.mock.peers import Peers
from services.mock.settings import EngineSettings

DEMO = Path(__file__).parents[3] / "models" / "demo"
URL = "data:image/png;base64,AAAA"


@pytest.fixture
async def instance() -> Instance:
    config = MockConfig(media_tokens=6)
    return Instance.create(config, config.settings(), 1, 0, Peers(), None)


def chat(instance: Instance, *parts: Any, **more: Any) -> Any:
    messages = [{"role": "user", "content": list(parts)}]
    request = decode_chat(json.dumps({"messages": messages, **more}).encode())
    return render_chat(instance, request, "r")


async def test_media_are_placeholders_between_the_bytes_of_the_text(instance: Instance) -> None:
    picture = {"type": "image_url", "image_url": {"url": URL}}
    rendered = chat(instance, "ab", picture, {"type": "text", "text": "ü"})
    (item,) = rendered.generate.mm_items
    assert rendered.generate.token_ids == [
        *b"<user>ab", *[PLACEHOLDER] * 6, *"ü".encode(), *b"<assistant>"
    ]  # fmt: skip
    assert (item.offset, item.length, item.modality) == (8, 6, "image")
    assert rendered.media == {item.mm_hash: URL.encode()}


@pytest.mark.parametrize(
    ("part", "modality"),
    [
        ({"type": "image_url", "image_url": URL}, "image"),
        ({"type": "video_url", "video_url": {"url": URL}}, "video"),
        ({"type": "audio_url", "audio_url": {"url": URL}}, "audio"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "audio"),
        ({"type": "image_embeds", "image_embeds": {}, "uuid": "u"}, "image"),
        ({"type": "image_url", "image_url": None, "uuid": "u"}, "image"),
    ],
)
async def test_every_kind_of_part_is_an_item(
    instance: Instance, part: dict[str, Any], modality: str
) -> None:
    rendered = chat(instance, part)
    (item,) = rendered.generate.mm_items
    assert item.modality == modality
    assert (item.mm_hash == "u") == ("uuid" in part) == (rendered.media == {})


async def test_a_reference_has_the_length_its_metadata_say(instance: Instance) -> None:
    grid = {"image_grid_thw": [1, 4, 10]}
    inside = {"type": "image_embeds", "image_embeds": grid, "uuid": "u"}
    outside = {"type": "image_url", "image_url": None, "uuid": "u"}
    entry = {"u": {"modality": "image", "metadata": grid}}
    for rendered in (chat(instance, inside), chat(instance, outside, ec_transfer_params=entry)):
        (item,) = rendered.generate.mm_items
        assert (item.grid, item.length) == ((1, 4, 10), 10)


async def test_another_medium_has_another_name(instance: Instance) -> None:
    names = [
        chat(instance, {"type": f"{kind}_url", f"{kind}_url": {"url": url}}).generate.mm_items[0]
        for kind, url in (("image", URL), ("image", URL + "B"), ("video", URL), ("image", URL))
    ]
    assert names[0] == names[3] and len({item.mm_hash for item in names}) == 3


@pytest.mark.parametrize(
    ("parts", "more"),
    [
        ([{"type": "smell", "uuid": "u"}], {}),
        ([{"type": "image_url"}], {}),
        ([{"type": "image_embeds", "image_embeds": {}}], {}),
        (["hi"], {"stop": "x"}),
    ],
)
async def test_what_cannot_be_honoured_is_refused(
    instance: Instance, parts: list[Any], more: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest):
        chat(instance, *parts, **more)


async def test_completions_have_one_request_for_each_prompt(instance: Instance) -> None:
    def ids(prompt: Any) -> list[list[int]]:
        request = decode_completion(json.dumps({"prompt": prompt}).encode())
        return [one.generate.token_ids for one in render_completion(instance, request, "r")]

    assert ids("ab") == ids(["ab"]) == ids([97, 98]) == ids([[97, 98]]) == [[97, 98]]
    assert ids(["a", "b"]) == [[97], [98]]
    for wrong in ([], ["a", 1]):
        with pytest.raises(InvalidRequest):
            ids(wrong)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 5000, b'"\xff"', b"", b"[1]"])
def test_bodies_that_make_no_sense_are_refused(body: bytes) -> None:
    for kind in (status_api._Tokenize, status_api._Detokenize):
        with pytest.raises(InvalidRequest):
            status_api._decoded(body, kind)
    for decode in (tokens_api._question, parse_faults):
        with pytest.raises(InvalidRequest):
            decode(body)


def test_text_is_ascii_or_numbers() -> None:
    assert text_of([104, 105, 300, -1]) == "hi<300><-1>"


@pytest.mark.parametrize("tokens", [1, 6, 7, 64, 100])
def test_a_grid_becomes_as_many_tokens_as_asked_for(tokens: int) -> None:
    grid = default_grid(tokens)
    assert prod(grid) == 4 * tokens and all(n % 2 == 0 for n in grid[1:])


@pytest.mark.parametrize(
    "flags",
    [
        ["--decode-base-ms", "-1"],
        ["--speed", "0"],
        ["--jitter", "1.5"],
        ["--count", "0"],
        ["--encode-servers-urls", "localhost:1"],
        ["--prefill-token-ms", "nan"],
    ],
)
def test_a_wrong_flag_is_named(flags: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"^{flags[0]}: "):
        resolve(MockConfig, flags, {})


def test_a_wrong_role_ends_the_process_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--role", "juggle"]) == 2
    assert "juggle" in capsys.readouterr().err


def test_infinite_speed_means_no_time() -> None:
    timing = resolve(MockConfig, ["--speed", "inf"], {}).timing()
    assert timing.instant_decode and timing.prefill_s(1000, 1000) == timing.encode_s(9, 9) == 0.0


def test_content_keys_are_the_models_own() -> None:
    """A model directory gives mocks the keys that its proxy computes."""
    settings = MockConfig(model=str(DEMO)).settings()
    assert settings.model != "mock" and len(settings.revision) > 8
    assert MockConfig().settings() == EngineSettings(host="127.0.0.1")
