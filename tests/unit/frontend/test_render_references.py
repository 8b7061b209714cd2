"""Media that a request names instead of bringing them: by metadata, by uuid, as seen before."""

from pathlib import Path

import pytest

from protocol.errors import InvalidRequest
from tests.support.frontend_helpers import Fronts, frontends, image_part, picture, render, user

DEMO = Path(__file__).parents[3] / "models" / "demo"
RED, BLUE, WIDE = picture(60, 40), picture(100, 300, "blue"), picture(700, 90, "green")


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Fronts:
    return frontends(tmp_path_factory.mktemp("models"))


def test_embeddings_by_name_need_no_picture(fronts: Fronts) -> None:
    reference = {
        "type": "image_embeds",
        "image_embeds": {"image_grid_thw": [1, 4, 6]},
        "uuid": "ab" * 32,
    }
    rendered = render(fronts(), user("x", reference), ec_transfer_params={"ab" * 32: {"peer": 1}})
    (item,) = rendered.generate.mm_items
    assert (item.mm_hash, item.grid, item.length) == ("ab" * 32, (1, 4, 6), 6)
    assert not rendered.media
    assert rendered.generate.ec_transfer_params == {"ab" * 32: {"peer": 1}}
    batched = {**reference, "image_embeds": {"image_grid_thw": [[1, 4, 6]]}}
    assert render(fronts(), user("x", batched)).generate.mm_items == [item]


def test_embeddings_by_the_uuid_that_an_encoder_reported(fronts: Fronts) -> None:
    """The uuid may be any text then; a worker finds the entry by the content's hash."""
    name, grid = "ab" * 32, {"image_grid_thw": [1, 4, 6]}
    entry = {"mm_hash": name, "metadata": grid, "peer_port": 1}
    named = {"type": "image_embeds", "image_embeds": grid, "uuid": "my picture/1"}
    cached = {"type": "image_url", "image_url": None, "uuid": "my picture/1"}
    for part in (named, cached):
        rendered = render(fronts(), user(part), ec_transfer_params={"my picture/1": entry})
        (item,) = rendered.generate.mm_items
        assert (item.mm_hash, item.grid) == (name, (1, 4, 6))
        assert (rendered.generate.ec_transfer_params or {})[name] == entry
        assert rendered.uuids == ["my picture/1"]
        with pytest.raises(InvalidRequest) as caught:
            bad = {"my picture/1": {**entry, "mm_hash": "../../x"}}
            render(fronts(), user(part), ec_transfer_params=bad)
        assert caught.value.param == "messages[0].content[0].uuid"


def test_every_family_takes_its_own_metadata_back(fronts: Fronts) -> None:
    for family in (
        "qwen2_5_vl",
        "gemma3",
        "gemma4",
        "llava_onevision",
        "internvl",
        "mistral3",
        "smolvlm",
    ):
        (item,) = render(fronts(family), user(image_part(WIDE))).generate.mm_items
        metadata = {"image_grid_thw": list(item.grid)} if item.grid else {}
        part = {"type": "image_embeds", "image_embeds": metadata, "uuid": item.mm_hash}
        assert render(fronts(family), user(part)).generate.mm_items == [item]


def test_a_picture_seen_before_can_be_named(fronts: Fronts) -> None:
    front = fronts("qwen2_5_vl", max_references=2)
    (item,) = render(front, user(image_part(RED, uuid="red"))).generate.mm_items
    again = {"type": "image_url", "image_url": None, "uuid": "red"}
    rendered = render(front, user(again))
    assert rendered.generate.mm_items == [item] and not rendered.media
    with pytest.raises(InvalidRequest, match="red"):
        render(front, user(again), cache_salt="another tenant")
    render(front, user(image_part(RED, uuid="theirs")), cache_salt="another tenant")
    theirs = {**again, "uuid": "theirs"}
    assert render(front, user(theirs), cache_salt="another tenant").generate.mm_items == [item]
    with pytest.raises(InvalidRequest, match="theirs"):
        render(front, user(theirs))
    for data, uuid in ((BLUE, "blue"), (WIDE, "wide")):
        render(front, user(image_part(data, uuid=uuid)))
    with pytest.raises(InvalidRequest) as caught:
        render(front, user(again))
    assert caught.value.code == "unknown_media"


def test_references_can_be_switched_off(fronts: Fronts) -> None:
    part = {"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 2, 2]}, "uuid": "ab"}
    with pytest.raises(InvalidRequest, match="reference"):
        render(fronts("qwen2_5_vl", allow_references=False), user(part))
