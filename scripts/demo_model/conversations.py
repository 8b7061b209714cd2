"""Rows of tokens for training: a prompt prefix shared by several questions that do not see each
other."""

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from benchmarks.common.pictures import Question, ask
from benchmarks.common.scenes import Scene
from scripts.demo_model.vision import Grid
from scripts.demo_model.vocabulary import SYSTEM_PROMPT

PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"


@dataclass
class Row:
    """Tokens of one row. Branch 0 is the prefix that everything sees; other branches see the prefix
    and themselves.

    `ids`: of the tokens.
    `branches`: which branch each belongs to.
    `positions`: m-RoPE's (time, row, column).
    `weights`: of each as a target, 0 where there is none.
    `pictures`: numbers of those in it, in the order of their tokens.
    `grids`: of pictures whose tokens have not come yet.
    `next_position`: of the token that comes next; `prefix_end`: where branches begin.
    """

    ids: list[int] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)
    positions: list[tuple[int, int, int]] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    pictures: list[int] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    next_position: int = 0
    prefix_end: int = 0


@dataclass(frozen=True)
class RowBatch:
    """Padded rows: `ids`, `weights` [rows, length], `positions` [3, rows, length], `mask`
    (bool, may look) [rows, 1, length, length], `pictures` in the order of the image tokens."""

    ids: Tensor
    positions: Tensor
    mask: Tensor
    weights: Tensor
    pictures: list[int]


class RowBuilder:
    """Turns questions into rows; remembers the ids of texts it has seen."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._cache: dict[str, list[int]] = {}
        self._image_token = tokenizer.convert_tokens_to_ids("<|image_pad|>")

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, special tokens parsed."""
        if text not in self._cache:
            self._cache[text] = self._tokenizer(text).input_ids
        return self._cache[text]

    def start(self, prefix: str, grids: list[Grid], pictures: list[int]) -> Row:
        """A row of the prefix that all its branches see. `grids` and `pictures` belong to the image
        tokens of the row in order; those the prefix leaves over are for the branches."""
        row = Row(pictures=pictures, grids=list(grids))
        self._extend(row, prefix, 0, 0.0)
        row.prefix_end = row.next_position
        return row

    def add(self, row: Row, pieces: list[tuple[str, bool]], limit: int) -> bool:
        """Add a branch of (text, is it a target) pieces unless the row would grow beyond `limit`
        tokens; returns whether it did."""
        length = len(row.ids) + sum(len(self.encode(text)) for text, _ in pieces)
        if length + sum(rows * columns - 1 for rows, columns in row.grids) > limit:
            return False
        branch = 1 + max(row.branches)
        row.next_position = row.prefix_end
        for text, is_target in pieces:
            weight = len(self.encode(text)) ** -0.5 if is_target else 0.0
            self._extend(row, text, branch, weight)
        return True

    def _extend(self, row: Row, text: str, branch: int, weight: float) -> None:
        for token in self.encode(text):
            places = [(0, 0, 0)]
            if token == self._image_token:
                rows, columns = row.grids.pop(0)
                places = [(0, r, c) for r in range(rows) for c in range(columns)]
            start = row.next_position
            row.ids += [token] * len(places)
            row.branches += [branch] * len(places)
            row.weights += [weight] * len(places)
            row.positions += [(start + t, start + r, start + c) for t, r, c in places]
            row.next_position = start + 1 + max(max(place) for place in places)


def collate(rows: list[Row], length: int) -> RowBatch:
    """Rows padded on the right to `length` tokens."""

    def padded(values: list[list[int]], fill: int) -> Tensor:
        return torch.tensor([v + [fill] * (length - len(v)) for v in values])

    branches = padded([row.branches for row in rows], -1)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    same = branches[:, :, None] == branches[:, None, :]
    mask = causal & (same | (branches[:, None, :] == 0))
    positions = [padded([[p[axis] for p in row.positions] for row in rows], 0) for axis in range(3)]
    weights = [row.weights + [0.0] * (length - len(row.weights)) for row in rows]
    return RowBatch(
        ids=padded([row.ids for row in rows], 0),
        positions=torch.stack(positions),
        mask=mask[:, None],
        weights=torch.tensor(weights),
        pictures=[picture for row in rows for picture in row.pictures],
    )


def system_turn() -> str:
    """The default system turn and the opening of the user's."""
    return f"<|im_start|>system\n{SYSTEM_PROMPT}<|im_end|>\n<|im_start|>user\n"


def exchange(question: Question) -> list[tuple[str, bool]]:
    """The rest of a user's turn whose pictures came first, and the answer as target."""
    asked = f"{question.text}<|im_end|>\n<|im_start|>assistant\n"
    return [(asked, False), (f"{question.answer}<|im_end|>", True), ("\n", False)]


def ask_surely(kinds: tuple[str, ...], scenes: tuple[Scene, ...], rng: random.Random) -> Question:
    """A question of one of `kinds`, drawn again until one has a true answer for the scenes."""
    while True:
        if question := ask(rng.choice(kinds), scenes, rng):
            return question
