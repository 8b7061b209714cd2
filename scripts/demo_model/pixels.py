"""Training pictures as arrays, made the way the image processor makes them, with dense targets."""

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from benchmarks.common.scenes import DIGITS, GROUNDS, SHAPES, TONES, Scene, draw
from scripts.demo_model.architecture import PIXELS
from scripts.demo_model.vision import Grid

FORMS = (*SHAPES, *DIGITS)
COLOURS = tuple(TONES)
SIDE = 28  # pixels of a merged token
UNCLEAR = -100  # class of a token that a thing covers in part


@dataclass(frozen=True)
class PictureBatch:
    """Pictures of one grid: uint8 `pixels` [pictures, rows * 28, columns * 28, 3] and the class of
    every token's thing, `form`, `colour` (0 is none), `ground` [pictures, tokens]; `centre` is the
    form of a thing whose centre lies in the token, `place` the ninth of the picture it is in."""

    grid: Grid  # rows and columns of tokens
    pixels: Tensor
    form: Tensor
    colour: Tensor
    ground: Tensor
    centre: Tensor
    place: Tensor


def grid_of(width: int, height: int) -> Grid:
    """Rows and columns of merged tokens of a picture of this size in pixels."""
    tall, wide = smart_resize(height, width, SIDE, PIXELS["shortest_edge"], PIXELS["longest_edge"])
    return tall // SIDE, wide // SIDE


def picture_batches(scenes: list[Scene]) -> tuple[list[PictureBatch], list[int]]:
    """The scenes drawn, one batch per grid, and each scene's place in all batches together."""
    grids = [grid_of(scene.width, scene.height) for scene in scenes]
    order = sorted(range(len(scenes)), key=lambda index: grids[index])
    batches = []
    for grid in sorted(set(grids)):
        batches.append(_batch([scenes[i] for i in order if grids[i] == grid], grid))
    places = [0] * len(scenes)
    for place, index in enumerate(order):
        places[index] = place
    return batches, places


def _batch(scenes: list[Scene], grid: Grid) -> PictureBatch:
    size = (grid[1] * SIDE, grid[0] * SIDE)
    arrays = [np.asarray(draw(scene).resize(size, Image.Resampling.BICUBIC)) for scene in scenes]
    labels = torch.from_numpy(np.stack([_token_labels(scene, grid) for scene in scenes]))
    return PictureBatch(grid, torch.from_numpy(np.stack(arrays)), *labels.unbind(1))


def _token_labels(scene: Scene, grid: Grid) -> np.typing.NDArray[np.int64]:
    """Form, colour, ground, centre and place class of every token, int64 [5, tokens]."""
    rows, columns = grid
    labels = np.zeros((5, rows, columns), np.int64)
    labels[4] = UNCLEAR
    labels[2] = tuple(GROUNDS).index(scene.ground)
    short = min(scene.width, scene.height)
    for thing in scene.things:
        reach_x, reach_y = thing.radius * short / scene.width, thing.radius * short / scene.height
        across = _overlap(thing.x * columns, reach_x * columns, columns)
        down = _overlap(thing.y * rows, reach_y * rows, rows)
        share = np.outer(down, across)
        labels[:2, share > 0.02] = UNCLEAR
        labels[0][share > 0.5] = 1 + FORMS.index(thing.form)
        labels[1][share > 0.5] = 1 + COLOURS.index(thing.colour)
    for thing in scene.things:
        middle = int(thing.y * rows), int(thing.x * columns)
        labels[0][middle] = labels[3][middle] = 1 + FORMS.index(thing.form)
        labels[1][middle] = 1 + COLOURS.index(thing.colour)
        labels[4][middle] = int(thing.y * 3) * 3 + int(thing.x * 3)
    return labels.reshape(5, -1)


def _overlap(centre: float, reach: float, count: int) -> np.typing.NDArray[np.float64]:
    """Length of each unit cell [count] that `centre` ± `reach` covers."""
    edges = np.arange(count)
    covered = np.minimum(edges + 1, centre + reach) - np.maximum(edges, centre - reach)
    inside: np.typing.NDArray[np.float64] = np.clip(covered, 0.0, 1.0)
    return inside
