"""The picture generator: deterministic, split by seed, and its answers true of the scene."""

import base64
import io
import random
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from benchmarks.common.pictures import (
    KINDS,
    Split,
    ask,
    description,
    encode_image,
    questions,
    sample,
)
from benchmarks.common.scenes import GROUNDS, SHAPES, TONES, Scene, Thing, draw, random_scene

COUNTED = 60


def pixels(image: Image.Image) -> np.typing.NDArray[np.uint8]:
    return np.asarray(image)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_one_question_and_one_picture(kind: str) -> None:
    first, again = sample(kind, 3), sample(kind, 3)
    assert first == again
    for one, other in zip(first.images(), again.images(), strict=True):
        assert np.array_equal(pixels(one), pixels(other))


def test_splits_share_no_seed_and_no_scene() -> None:
    assert Split.TRAIN.value.stop <= Split.HELD_OUT.value.start
    trained = {q.scenes for q in questions("describe", COUNTED, Split.TRAIN)}
    assert len(trained) == COUNTED
    assert trained.isdisjoint(q.scenes for q in questions("describe", COUNTED, Split.HELD_OUT))


@pytest.mark.parametrize("index", [-1, 2**40])
def test_an_index_outside_the_split_is_an_error(index: int) -> None:
    with pytest.raises(IndexError):
        sample("count", index)


def test_things_stay_inside_the_picture_and_apart() -> None:
    rng = random.Random(5)
    for _ in range(200):
        scene = random_scene(rng)
        short = min(scene.width, scene.height)
        boxes: list[tuple[float, float, float]] = []
        for thing in scene.things:
            x, y, r = thing.x * scene.width, thing.y * scene.height, thing.radius * short
            assert r <= x <= scene.width - r and r <= y <= scene.height - r
            assert all(max(abs(x - a), abs(y - b)) >= r + s for a, b, s in boxes)
            boxes.append((x, y, r))


@pytest.mark.parametrize("form", SHAPES)
def test_the_middle_of_a_shape_has_its_colour(form: str) -> None:
    rgb = TONES["purple"][0]
    thing = Thing(form, "purple", rgb, 0.3, 0.7, 0.2, 0.1)
    image = draw(Scene((thing,), "white", GROUNDS["white"][0], 200, 160))
    assert image.size == (200, 160)
    assert image.getpixel((60, 112)) == rgb
    assert image.getpixel((199, 0)) == (255, 255, 255)


def two_things() -> Scene:
    circle = Thing("circle", "red", (255, 0, 0), 0.2, 0.2, 0.1, 0.0)
    digit = Thing("7", "orange", (255, 165, 0), 0.8, 0.8, 0.1, 0.0)
    return Scene((circle, digit), "grey", (128, 128, 128), 224, 224)


def answers_by_text(kind: str) -> dict[str, str]:
    rng = random.Random(0)
    asked = [ask(kind, (two_things(),), rng) for _ in range(500)]
    return {question.text: question.answer for question in asked if question}


def test_answers_are_true_of_a_known_scene() -> None:
    assert description(two_things()) == "A red circle and an orange digit 7 on a grey background."
    assert answers_by_text("count")["Count the circles."] == "There is 1 circle."
    assert answers_by_text("count")["Count the stars."] == "There are no stars."
    assert answers_by_text("count")["Count the objects."] == "There are 2 objects."
    assert answers_by_text("colour")["What colour is the digit?"] == "The digit is orange."
    assert set(answers_by_text("digit").values()) == {"The digit is 7."}
    assert set(answers_by_text("background").values()) == {"The background is grey."}
    where = answers_by_text("position")["Where is the red circle?"]
    assert where == "The red circle is at the top left."
    assert answers_by_text("yesno")["Do you see a circle?"] == "Yes."


def test_counts_match_the_scene() -> None:
    for question in questions("count", COUNTED):
        things = question.scenes[0].things
        for form in SHAPES:
            if f" {form}" in question.text:
                number = sum(thing.form == form for thing in things)
                assert f" {number or 'no'} {form}" in question.answer


def test_just_one_of_two_images_has_what_is_asked() -> None:
    for question in questions("two_images", COUNTED):
        named = [t.name for s in question.scenes for t in s.things if t.name in question.text]
        if named:
            holders = [any(t.name == named[0] for t in s.things) for s in question.scenes]
            assert holders.count(True) == 1
            assert question.answer == f"The {('first', 'second')[holders.index(True)]} image."


def test_openai_messages_carry_the_picture() -> None:
    question = sample("two_images", 0)
    content = question.openai_messages("JPEG")[0]["content"]
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    assert len(urls) == 2
    header, payload = urls[1].split(",")
    assert header == "data:image/jpeg;base64"
    image = Image.open(io.BytesIO(base64.b64decode(payload)))
    assert image.size == question.images()[1].size


def test_png_bytes_hold_the_very_pixels() -> None:
    image = sample("describe", 1).images()[0]
    assert np.array_equal(pixels(Image.open(io.BytesIO(encode_image(image)))), pixels(image))


def test_pictures_need_no_torch() -> None:
    code = "import sys, benchmarks.common.pictures; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
