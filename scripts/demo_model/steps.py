"""What one training step sees, pictures and rows of questions: a function of its number."""

import random
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerFast

from benchmarks.common.pictures import Split
from benchmarks.common.scenes import SIZES, Scene, random_scene
from scripts.demo_model.conversations import (
    PICTURE,
    Row,
    RowBatch,
    RowBuilder,
    ask_surely,
    collate,
    exchange,
    system_turn,
)
from scripts.demo_model.pixels import PictureBatch, grid_of, picture_batches

ONE_PICTURE = (
    "describe", "describe", "count", "count", "count", "colour", "shape", "digit",
    "background", "position", "position", "yesno", "yesno",
)  # fmt: skip
SHARED, PAIRED, SINGLE = 160, 192, 128  # tokens of a row
TWO_PICTURES = ("two_images", "two_images", "two_images", "one_of_two")


@dataclass(frozen=True)
class Step:
    """Pictures by grid, and rows by kind; a row's pictures index the concatenated pictures."""

    pictures: list[PictureBatch]
    rows: list[RowBatch]

    def to(self, device: str) -> "Step":
        """The step with its tensors on a device."""
        pictures = [replace(batch, **_moved(batch, device)) for batch in self.pictures]
        return Step(pictures, [replace(batch, **_moved(batch, device)) for batch in self.rows])


def _moved(batch: PictureBatch | RowBatch, device: str) -> dict[str, Any]:
    """The tensors of a batch by field, on a device."""
    fields = vars(batch).items()
    return {name: value.to(device) for name, value in fields if isinstance(value, Tensor)}


class Steps:
    """Step number `index` of training; `talk=False` leaves the rows out."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, seed: int, pictures: int, talk: bool
    ) -> None:
        self._builder = RowBuilder(tokenizer)
        self._seed, self._pictures, self._talk = seed, pictures, talk

    def __getitem__(self, index: int) -> Step:
        number = (self._seed * 2 + self._talk) * 2**24 + index
        rng = random.Random(Split.TRAIN.value[number])
        # The same sizes in every step: new tensor shapes cost the CPU's kernels seconds.
        sizes = [SIZES[i % len(SIZES)] for i in range(self._pictures)]
        scenes = [random_scene(rng, size) for size in sizes]
        pictures, places = picture_batches(scenes)
        if not self._talk:
            return Step(pictures, [])
        writer = _Writer(self._builder, scenes, places, rng)
        return Step(pictures, writer.buckets())


class _Writer:
    """Writes the rows of one step."""

    def __init__(
        self, builder: RowBuilder, scenes: list[Scene], places: list[int], rng: random.Random
    ) -> None:
        self._builder, self._scenes, self._places, self._rng = builder, scenes, places, rng

    def buckets(self) -> list[RowBatch]:
        """Rows of one length together, the same shapes in every step."""
        count = len(self._scenes)
        shared = [self._shared((i,), ONE_PICTURE, SHARED) for i in range(count)]
        shared += [self._text_row() for _ in range(-(-count // 6))]
        pairs = [self._shared(self._pair(), TWO_PICTURES, PAIRED) for _ in range(count // 2)]
        single = [self._question_first((i,), ONE_PICTURE) for i in range(0, count, 4)]
        single += [self._question_first(self._pair(), TWO_PICTURES) for _ in range(count // 8)]
        return [collate(shared, SHARED), collate(pairs, PAIRED), collate(single, SINGLE)]

    def _pair(self) -> tuple[int, ...]:
        return tuple(self._rng.sample(range(len(self._scenes)), 2))

    def _shared(self, chosen: tuple[int, ...], kinds: tuple[str, ...], limit: int) -> Row:
        """Pictures first, then as many separate questions about them as fit."""
        row = self._start(system_turn() + PICTURE * len(chosen), chosen)
        while self._builder.add(row, self._pieces(chosen, kinds), limit):
            pass
        return row

    def _pieces(self, chosen: tuple[int, ...], kinds: tuple[str, ...]) -> list[tuple[str, bool]]:
        """One exchange, now and then two."""
        scenes = tuple(self._scenes[i] for i in chosen)
        pieces = exchange(ask_surely(kinds, scenes, self._rng))
        if self._rng.random() < 0.12:
            pieces.append(("<|im_start|>user\n", False))
            pieces += exchange(ask_surely(kinds, scenes, self._rng))
        return pieces

    def _question_first(self, chosen: tuple[int, ...], kinds: tuple[str, ...]) -> Row:
        scenes = tuple(self._scenes[i] for i in chosen)
        row = self._start(system_turn(), chosen)
        (asked, _), *rest = exchange(ask_surely(kinds, scenes, self._rng))
        text, end, opening = asked.partition("<|im_end|>")
        first = (text + PICTURE * len(chosen) + end + opening, False)
        if not self._builder.add(row, [first, *rest], SINGLE):
            raise AssertionError("a question with its pictures is longer than a row")
        return row

    def _text_row(self) -> Row:
        row = self._start(system_turn(), ())
        while self._builder.add(row, self._pieces((), ("text",)), SHARED):
            pass
        return row

    def _start(self, prefix: str, chosen: tuple[int, ...]) -> Row:
        grids = [grid_of(self._scenes[i].width, self._scenes[i].height) for i in chosen]
        return self._builder.start(prefix, grids, [self._places[i] for i in chosen])
