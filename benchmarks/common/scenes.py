"""Scenes: coloured shapes and digits on a plain ground, as pure functions of a random generator.

A scene is drawn at its own size; its things keep to the cells of a grid and never overlap.
"""

import math
import random
from dataclasses import dataclass
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]

# Two tones per name: what is drawn lies between them, so usual definitions of a name are covered.
TONES: dict[str, tuple[Colour, Colour]] = {
    "red": ((255, 0, 0), (205, 25, 40)),
    "green": ((0, 128, 0), (40, 215, 60)),
    "blue": ((0, 0, 255), (40, 90, 225)),
    "yellow": ((255, 255, 0), (240, 215, 40)),
    "orange": ((255, 165, 0), (245, 120, 20)),
    "purple": ((128, 0, 128), (145, 60, 200)),
    "pink": ((255, 192, 203), (255, 120, 180)),
}
GROUNDS: dict[str, tuple[Colour, Colour]] = {
    "white": ((255, 255, 255), (238, 238, 240)),
    "black": ((0, 0, 0), (24, 24, 26)),
    "grey": ((128, 128, 128), (150, 150, 154)),
}
SHAPES = ("circle", "square", "triangle", "star", "cross")
DIGITS = tuple("0123456789")
SIZES = ((224, 224),) * 5 + ((256, 256), (160, 160), (320, 240), (240, 320), (400, 300), (300, 400))
MAX_THINGS = 4


@dataclass(frozen=True)
class Thing:
    """A shape or digit."""

    form: str  # its name
    colour: str  # the colour's name
    rgb: Colour  # the colour
    x: float  # of its centre, share of the picture's width
    y: float  # of its centre, share of the height
    radius: float  # share of the short side
    turn: float  # radians

    @property
    def noun(self) -> str:
        """What it is without its colour: "circle", "digit 7"."""
        return f"digit {self.form}" if self.form in DIGITS else self.form

    @property
    def name(self) -> str:
        """Colour and noun: "red circle"."""
        return f"{self.colour} {self.noun}"

    @property
    def place(self) -> str:
        """The ninth of the picture its centre is in: "top left", "top", "centre"."""
        row = ("top", "", "bottom")[int(self.y * 3)]
        column = ("left", "", "right")[int(self.x * 3)]
        return f"{row} {column}".strip() or "centre"


@dataclass(frozen=True)
class Scene:
    """A picture yet to be drawn: `things` in reading order, no two alike; sizes in pixels."""

    things: tuple[Thing, ...]
    ground: str
    rgb: Colour
    width: int
    height: int


def random_scene(rng: random.Random, size: tuple[int, int] | None = None) -> Scene:
    """A scene of 1 to `MAX_THINGS` things, now and then one of them a digit; `size` is
    (width, height) in pixels, by default one of `SIZES`."""
    width, height = size or rng.choice(SIZES)
    ground = rng.choice(tuple(GROUNDS))
    names = _random_names(rng)
    grid = rng.choice([g for g in (1, 2, 3) if g * g >= len(names)])
    cells = sorted(rng.sample(range(grid * grid), len(names)))
    things = tuple(
        _random_thing(rng, form, colour, divmod(cell, grid), grid, width / height)
        for (form, colour), cell in zip(names, cells, strict=True)
    )
    return Scene(things, ground, _tone(rng, GROUNDS[ground]), width, height)


def _random_names(rng: random.Random) -> list[tuple[str, str]]:
    """Distinct (form, colour) pairs, often with one form or one colour more than once."""
    count = rng.randint(1, MAX_THINGS)
    forms = SHAPES if rng.random() < 0.6 else tuple(rng.sample(SHAPES, 2))
    colours = tuple(TONES) if rng.random() < 0.8 else tuple(rng.sample(sorted(TONES), 3))
    common = rng.choice(SHAPES) if rng.random() < 0.4 else None
    pairs = [(f, c) for f in ((common,) if common else forms) for c in tuple(TONES)]
    pairs = [pair for pair in pairs if pair[1] in colours] if not common else pairs
    names = rng.sample(pairs, min(count, len(pairs)))
    if common and count > 1 and rng.random() < 0.5:
        names[-1] = (rng.choice([s for s in SHAPES if s != common]), rng.choice(colours))
    if rng.random() < 0.4:
        names[0] = (rng.choice(DIGITS), rng.choice(colours))
    rng.shuffle(names)
    return names


def _random_thing(
    rng: random.Random, form: str, colour: str, cell: tuple[int, int], grid: int, aspect: float
) -> Thing:
    """A thing inside its (row, column) cell; `aspect` is width / height of the picture."""
    wide, tall = max(aspect, 1.0), max(1 / aspect, 1.0)
    radius = rng.uniform(0.36 if grid > 1 else 0.2, 0.46) / grid
    room_x, room_y = 0.5 / grid - radius / wide, 0.5 / grid - radius / tall
    reach = 0.8 if grid > 1 else 0.4
    x = (cell[1] + 0.5) / grid + rng.uniform(-reach, reach) * room_x
    y = (cell[0] + 0.5) / grid + rng.uniform(-reach, reach) * room_y
    return Thing(form, colour, _tone(rng, TONES[colour]), x, y, radius, rng.uniform(-0.2, 0.2))


def _tone(rng: random.Random, ends: tuple[Colour, Colour]) -> Colour:
    """A colour between two ends; one time in three exactly the first."""
    share = max(0.0, rng.uniform(-0.5, 1.0))
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(*ends, strict=True))
    return red, green, blue


def draw(scene: Scene) -> Image.Image:
    """The scene as an RGB picture of its own size."""
    image = Image.new("RGB", (scene.width, scene.height), scene.rgb)
    canvas = ImageDraw.Draw(image)
    for thing in scene.things:
        radius = thing.radius * min(scene.width, scene.height)
        _draw_thing(canvas, thing, thing.x * scene.width, thing.y * scene.height, radius)
    return image


def _draw_thing(canvas: ImageDraw.ImageDraw, thing: Thing, x: float, y: float, r: float) -> None:
    if thing.form == "circle":
        canvas.ellipse((x - r, y - r, x + r, y + r), fill=thing.rgb)
    elif thing.form in DIGITS:
        canvas.text((x, y), thing.form, thing.rgb, _font(round(2.6 * r)), "mm", stroke_width=r / 16)
    else:
        outline = [(radius * r, angle + thing.turn) for radius, angle in _outline(thing.form)]
        canvas.polygon([(x + d * math.sin(a), y - d * math.cos(a)) for d, a in outline], thing.rgb)


def _outline(form: str) -> list[tuple[float, float]]:
    """Corners of a shape of radius 1 as (distance, clockwise angle from the top)."""
    if form == "square":
        return [(1.0, math.pi * (0.25 + 0.5 * i)) for i in range(4)]
    if form == "triangle":
        return [(1.0, math.pi * 2 / 3 * i) for i in range(3)]
    if form == "star":
        return [((1.0, 0.42)[i % 2], math.pi / 5 * i) for i in range(10)]
    arm = math.atan(0.36)
    turns = [math.pi / 2 * i for i in range(4)]
    corner = (0.36 * math.sqrt(2), math.pi / 4)
    return [p for t in turns for p in ((1.0, t - arm), (1.0, t + arm), (corner[0], t + corner[1]))]


@lru_cache(maxsize=256)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font at `size` pixels."""
    return ImageFont.load_default(size)
