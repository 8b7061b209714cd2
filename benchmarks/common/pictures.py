"""Questions about drawn pictures, each with its one true answer.

Everything is a pure function of a seed. Training and held-out seeds are disjoint ranges, so a model
trained on `Split.TRAIN` has never seen a picture of `Split.HELD_OUT`. Needs Pillow only.
"""

import base64
import io
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from PIL import Image

from benchmarks.common.judging import agrees, facts_of
from benchmarks.common.phrases import PHRASES, TEXT_TURNS
from benchmarks.common.scenes import DIGITS, SHAPES, TONES, Scene, Thing, draw, random_scene


class Split(Enum):
    """Ranges of seeds that do not overlap."""

    TRAIN = range(0, 2**40)
    HELD_OUT = range(2**40, 2**41)


@dataclass(frozen=True)
class Question:
    """A question about `scenes`, in order. `answer` is the right one as the demo model words it."""

    kind: str
    text: str
    answer: str
    scenes: tuple[Scene, ...] = ()
    images_first: bool = True

    @property
    def has_facts(self) -> bool:
        """Whether other words can be right too. They cannot where the answer is a greeting."""
        return bool(facts_of(self.kind, self.answer, self.answer))

    def matches(self, answer: str) -> bool:
        """Whether `answer` is right, in any words: it must name everything that the right
        answer names (colours, things, numbers), and nothing else of the same sort."""
        return agrees(self.kind, answer, self.answer)

    def images(self) -> list[Image.Image]:
        """The pictures, freshly drawn."""
        return [draw(scene) for scene in self.scenes]

    def messages(self) -> list[dict[str, Any]]:
        """Messages for a chat template, with bare `{"type": "image"}` parts."""
        return self._turn([{"type": "image"} for _ in self.scenes])

    def openai_messages(self, image_format: str = "PNG") -> list[dict[str, Any]]:
        """Messages for the OpenAI API, the pictures as data: URLs (PNG or JPEG)."""
        urls = [data_url(image, image_format) for image in self.images()]
        return self._turn([{"type": "image_url", "image_url": {"url": url}} for url in urls])

    def _turn(self, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        text = [{"type": "text", "text": self.text}]
        return [
            {"role": "user", "content": parts + text if self.images_first else text + parts},
        ]


def encode_image(image: Image.Image, image_format: str = "PNG") -> bytes:
    """File bytes of `image` as PNG or JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, image_format, quality=92)
    return buffer.getvalue()


def data_url(image: Image.Image, image_format: str = "PNG") -> str:
    """`image` as a data: URL."""
    payload = base64.b64encode(encode_image(image, image_format)).decode()
    return f"data:image/{image_format.lower()};base64,{payload}"


def sample(kind: str, index: int, split: Split = Split.HELD_OUT) -> Question:
    """Question number `index` of a kind. Raises KeyError (kind), IndexError (past the split)."""
    if index < 0:
        raise IndexError(f"index must not be negative, got {index}")
    rng = random.Random(split.value[index * len(KINDS) + KINDS.index(kind)])
    while True:
        scenes = tuple(random_scene(rng) for _ in range(MAKERS[kind][0]))
        if question := ask(kind, scenes, rng):
            return question


def questions(kind: str, count: int, split: Split = Split.HELD_OUT) -> Iterator[Question]:
    """The first `count` questions of a kind."""
    return (sample(kind, index, split) for index in range(count))


def ask(kind: str, scenes: tuple[Scene, ...], rng: random.Random) -> Question | None:
    """A question of a kind about as many scenes as the kind needs; None where no question of that
    kind has one true answer."""
    words = MAKERS[kind][1](scenes, rng)
    if words is None:
        return None
    gap, answer = words
    phrase = rng.choice(PHRASES.get(kind, ("{x}",)))
    text = phrase.format(x=gap).replace(" a orange", " an orange")
    return Question(kind, text, answer, scenes, rng.random() < 0.7)


def description(scene: Scene) -> str:
    """All things of a scene in reading order, and its background."""
    names = [f"a {thing.name}" for thing in scene.things]
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    text = f"{listed} on a {scene.ground} background.".replace("a orange", "an orange")
    return text[0].upper() + text[1:]


Scenes = tuple[Scene, ...]
Words = tuple[str, str] | None  # what fills the gap of the phrase, and the answer


def _general(thing: Thing) -> str:
    """The noun without a digit's value."""
    return "digit" if thing.form in DIGITS else thing.form


def _unique(scene: Scene, key: Callable[[Thing], str]) -> list[Thing]:
    """Things that no other thing equals in `key`."""
    keys = [key(thing) for thing in scene.things]
    return [thing for thing in scene.things if keys.count(key(thing)) == 1]


def _has(scene: Scene, name: str) -> bool:
    return any(name in (t.name, t.noun, _general(t), scene.ground) for t in scene.things)


def _describe(scenes: Scenes, rng: random.Random) -> Words:
    return "", description(scenes[0])


def _count(scenes: Scenes, rng: random.Random) -> Words:
    here = [thing.form for thing in scenes[0].things if thing.form in SHAPES]
    form = rng.choice(here) if here and rng.random() < 0.8 else rng.choice(SHAPES)
    plural = form + ("es" if form == "cross" else "s")
    count = here.count(form)
    if rng.random() < 0.15:
        form, plural, count = "object", "objects", len(scenes[0].things)
    if count == 1:
        return plural, f"There is 1 {form}."
    return plural, f"There are {count or 'no'} {plural}."


def _colour(scenes: Scenes, rng: random.Random) -> Words:
    if not (things := _unique(scenes[0], _general)):
        return None
    thing = rng.choice(things)
    return _general(thing), f"The {_general(thing)} is {thing.colour}."


def _shape(scenes: Scenes, rng: random.Random) -> Words:
    things = _unique(scenes[0], lambda thing: thing.colour)
    if not (things := [thing for thing in things if thing.form in SHAPES]):
        return None
    thing = rng.choice(things)
    return thing.colour, f"The {thing.colour} object is a {thing.form}."


def _digit(scenes: Scenes, rng: random.Random) -> Words:
    digits = [thing.form for thing in scenes[0].things if thing.form in DIGITS]
    if not digits and rng.random() < 0.95:
        return None
    return "", f"The digit is {digits[0]}." if digits else "There is no digit."


def _background(scenes: Scenes, rng: random.Random) -> Words:
    return "", f"The background is {scenes[0].ground}."


def _position(scenes: Scenes, rng: random.Random) -> Words:
    thing = rng.choice(scenes[0].things)
    short = thing in _unique(scenes[0], _general) and rng.random() < 0.3
    name = _general(thing) if short else thing.name
    return name, f"The {name} is at the {thing.place}."


def _yesno(scenes: Scenes, rng: random.Random) -> Words:
    if rng.random() < 0.5:
        thing = rng.choice(scenes[0].things)
        return rng.choice((thing.name, _general(thing))), "Yes."
    while _has(scenes[0], name := _likely_name(scenes[0], rng)):
        pass
    return name, "No."


def _likely_name(scene: Scene, rng: random.Random) -> str:
    """A name of something, often made of a form and a colour that are in the scene."""
    forms = [t.noun for t in scene.things] if rng.random() < 0.5 else list(SHAPES)
    colours = [t.colour for t in scene.things] if rng.random() < 0.5 else list(TONES)
    form, colour = rng.choice(forms), rng.choice(colours)
    return form if form in SHAPES and rng.random() < 0.4 else f"{colour} {form}"


def _two_images(scenes: Scenes, rng: random.Random) -> Words:
    which = rng.randrange(2)
    thing, ground = rng.choice(scenes[which].things), scenes[which].ground
    name = rng.choice((thing.name, thing.name, thing.noun, ground))
    if _has(scenes[1 - which], name):
        return None
    gap = f"{ground} background" if name == ground else name
    return gap, f"The {('first', 'second')[which]} image."


def _one_of_two(scenes: Scenes, rng: random.Random) -> Words:
    which = rng.randrange(2)
    return ("first", "second")[which], description(scenes[which])


def _text(scenes: Scenes, rng: random.Random) -> Words:
    if rng.random() < 0.3:
        a, b = rng.randrange(10), rng.randrange(10)
        asked = rng.choice((f"What is {a} plus {b}?", f"What is {a} + {b}?", f"{a} + {b} ="))
        return asked, f"{a} plus {b} is {a + b}."
    answer = rng.choice(tuple(TEXT_TURNS))
    return rng.choice(TEXT_TURNS[answer]), answer


# Number of pictures a kind needs, and what makes its words.
MAKERS: dict[str, tuple[int, Callable[[Scenes, random.Random], Words]]] = {
    "describe": (1, _describe),
    "count": (1, _count),
    "colour": (1, _colour),
    "shape": (1, _shape),
    "digit": (1, _digit),
    "background": (1, _background),
    "position": (1, _position),
    "yesno": (1, _yesno),
    "two_images": (2, _two_images),
    "one_of_two": (2, _one_of_two),
    "text": (0, _text),
}
KINDS = tuple(MAKERS)
