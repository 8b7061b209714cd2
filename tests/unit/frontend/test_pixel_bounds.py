"""How large a request may have its pictures: `mm_processor_kwargs`."""

from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ConfigError, InvalidRequest
from protocol.generate import encode_item
from services.frontend.options import FrontendOptions
from tests.support.frontend_helpers import Fronts, frontends, image_part, picture, render, user

WIDE = picture(700, 90, "green")
SMALL: dict[str, Any] = {"max_pixels": 28 * 28 * 8}


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Fronts:
    return frontends(tmp_path_factory.mktemp("models"))


def test_a_smaller_picture_is_another_one(fronts: Fronts) -> None:
    front, messages = fronts(), user("x", image_part(WIDE))
    whole = render(front, messages)
    small = render(front, messages, mm_processor_kwargs=SMALL)
    (usual,), (item,) = whole.generate.mm_items, small.generate.mm_items
    assert item.length <= 8 < usual.length
    assert (
        len(small.generate.token_ids) == len(whole.generate.token_ids) - usual.length + item.length
    )
    assert item.mm_hash != usual.mm_hash and list(small.media) == [item.mm_hash]
    assert (usual.pixels, item.pixels) == (None, (3136, SMALL["max_pixels"]))
    assert encode_item(item, WIDE).pixels == item.pixels
    assert render(front, messages, mm_processor_kwargs={}).generate.mm_items == [usual]


def test_spellings_of_the_same_bounds_share_an_embedding(fronts: Fronts) -> None:
    messages, most = user(image_part(WIDE)), SMALL["max_pixels"]
    asked = (SMALL, {"size": {"longest_edge": most}}, {"images_kwargs": SMALL})
    items = [
        render(fronts(), messages, mm_processor_kwargs=kwargs).generate.mm_items for kwargs in asked
    ]
    assert items[0] == items[1] == items[2]


def test_a_flag_holds_for_all_and_is_the_most_a_request_may_ask(fronts: Fronts) -> None:
    front, messages = fronts(mm_processor_kwargs=SMALL), user(image_part(WIDE))
    (item,) = render(front, messages).generate.mm_items
    assert item.pixels == (3136, SMALL["max_pixels"]) and item.length <= 8
    assert render(front, messages, mm_processor_kwargs=SMALL).generate.mm_items == [item]
    assert front.name_of(WIDE, item.pixels) == item.mm_hash != front.name_of(WIDE)
    smaller = render(front, messages, mm_processor_kwargs={"max_pixels": 28 * 28 * 5})
    assert smaller.generate.mm_items[0].length < item.length
    with pytest.raises(InvalidRequest, match="at most 6272") as caught:
        render(front, messages, mm_processor_kwargs={"max_pixels": 28 * 28 * 9})
    assert caught.value.param == "mm_processor_kwargs"


def test_a_picture_by_uuid_is_that_of_its_bounds(fronts: Fronts) -> None:
    front = fronts(max_references=9)
    (small,) = render(
        front, user(image_part(WIDE, uuid="w")), mm_processor_kwargs=SMALL
    ).generate.mm_items
    named = user({"type": "image_url", "image_url": None, "uuid": "w"})
    assert (
        render(front, named, mm_processor_kwargs=SMALL).generate.mm_items[0].mm_hash
        == small.mm_hash
    )
    with pytest.raises(InvalidRequest) as caught:
        render(front, named)
    assert caught.value.code == "unknown_media"


@pytest.mark.parametrize("family", ["gemma3", "llava_onevision", "mistral3", "qwen3"])
def test_models_with_one_size_for_all_refuse(family: str, fronts: Fronts) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(fronts(family), mm_processor_kwargs=SMALL)
    assert caught.value.param == "mm_processor_kwargs"
    with pytest.raises(ConfigError, match="--mm-processor-kwargs"):
        fronts(family, mm_processor_kwargs=SMALL)


@pytest.mark.parametrize("text", ["{", "[1]", "5", '{"fsp": 2}', '{"fps": 0}', '{"max_pixels": 0}'])
def test_a_wrong_flag_is_told_at_the_start(text: str, fronts: Fronts) -> None:
    with pytest.raises(ConfigError, match="--mm-processor-kwargs"):
        kwargs = FrontendOptions(model="demo", mm_processor_kwargs=text).to_config()
        fronts(mm_processor_kwargs=kwargs.mm_processor_kwargs)


def test_the_flag_is_json() -> None:
    config = FrontendOptions(model="demo", mm_processor_kwargs='{"max_pixels": 6272}').to_config()
    assert config.mm_processor_kwargs == SMALL
    assert Path(config.model).is_dir()
