"""Guessed tokens: how many are right, and what they make of the tokens/s of our own engine.

    python -m benchmarks.bench_drafting [--quick] [--json FILE] [--markdown FILE] [--threads N]

One random model of `bench_engine`'s shape (270 million parameters in bfloat16), its engine with
guesses (`ours`) beside the same engine without (`peer`), load by load in turn. For prompt lookup,
answers are drawn by seed, about evenly from so many tokens: from 1, all that is guessed is right;
from 16, guesses are often made and seldom right; from 500, little is found to guess. Draft models
guess greedy answers: one of the layers that matter alone (all right: the most that a draft model
can give), one of other weights, and the model itself (as right, at the price of the model). How
many guesses are right is counted, not set. `--quick`: a small model, few tokens, no bars.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.bench_drafting import models
from benchmarks.bench_drafting.engines import Figures, Load, engine, measure
from benchmarks.bench_drafting.models import Models
from benchmarks.common import random_model
from benchmarks.common.rows import Row, arguments, finish, hardware, head, line, markdown
from services.engine.config import Speculation
from services.engine.engine import Engine

GUESSED = 4  # at once, for each request
PAYS, COSTS = 1.0, 0.9  # bars of the ratio, where all guesses are right, and of any others


@dataclass(frozen=True)
class Method:
    """How is guessed, and at which loads; `pays`: whether it is to be faster there."""

    name: str
    guesses: Speculation
    choices: Sequence[int]  # see `Load`
    pays: Sequence[int] = ()
    judged: bool = True


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    layers: int  # layers of the target model
    few: int  # layers of a draft model
    output: int  # output tokens of a request
    at_once: Sequence[int]  # requests decoded at the same time, a load for each
    rounds: int  # times that each load is run
    judged: bool = True  # whether rows have bars


FULL, QUICK = Size(24, 2, 64, (1, 8), 5), Size(4, 1, 12, (2,), 1, judged=False)


def methods(built: Models) -> Iterator[Method]:
    """Of the table, in its order."""
    lookup = Speculation("ngram", GUESSED)
    yield Method("prompt lookup", lookup, (1, 2, 16, 500), pays=(1,))
    yield Method("a draft model that is right", _draft(built.right), (0,), pays=(0,))
    yield Method("a draft model that is wrong", _draft(built.wrong), (0,), judged=False)
    yield Method("the model itself as draft model", _draft(built.large), (0,), judged=False)


def _draft(folder: Path) -> Speculation:
    return Speculation("draft_model", GUESSED, model=str(folder))


def compare(built: Models, method: Method, plain: Engine, size: Size) -> Iterator[Row]:
    """The rows of one method, made while they are asked for."""
    guessing = engine(built.large, method.guesses, max(size.at_once))
    try:
        for choices in method.choices:
            for at_once in size.at_once:
                load = Load(choices, at_once, size.output)
                with_guesses, without = _in_turn(guessing, plain, load, size.rounds)
                yield _right(method, load, with_guesses[0])
                yield _speed(method, load, with_guesses, without, judged=size.judged)
                if (same := _same(with_guesses[0], without[0])) < 1:
                    yield Row(f"{method.name}, {load.name}: same answers", same)
    finally:
        guessing.close()


def _in_turn(
    guessing: Engine, plain: Engine, load: Load, rounds: int
) -> tuple[list[Figures], list[Figures]]:
    for worker in (guessing, plain):
        measure(worker, Load(load.choices, load.at_once, 4))
    pairs = [(measure(guessing, load), measure(plain, load)) for _ in range(rounds)]
    return [one for one, _ in pairs], [other for _, other in pairs]


def _right(method: Method, load: Load, found: Figures) -> Row:
    share = found.right / found.guessed if found.guessed else 0.0
    tokens = sum(map(len, found.answers))
    about = f"{method.name}, {load.name}: right, of {found.guessed / tokens:.1f} guesses a token"
    return Row(about, share)


def _speed(
    method: Method, load: Load, ours: Sequence[Figures], peer: Sequence[Figures], *, judged: bool
) -> Row:
    """Medians. The ratio is that of the runs one after the other: what else a machine computes
    changes less from one to the next than from the first to the last."""
    pairs = zip(ours, peer, strict=True)
    ratio = statistics.median(one.tokens_s / other.tokens_s for one, other in pairs)
    median, plain = (statistics.median(one.tokens_s for one in found) for found in (ours, peer))
    name = f"{method.name}, {load.name}: tokens/s"
    if not (judged and method.judged):
        return Row(name, median, plain, ratio)
    bar = PAYS if load.choices in method.pays else COSTS
    return Row(name, median, plain, ratio, f"ratio >= {bar:g}", ratio >= bar)


def _same(ours: Figures, peer: Figures) -> float:
    """The share of answers that are the same."""
    pairs = list(zip(ours.answers, peer.answers, strict=True))
    return sum(one == other for one, other in pairs) / len(pairs)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    given = _parse(argv)
    if given.threads:
        torch.set_num_threads(given.threads)
    size = QUICK if given.quick else FULL
    size = replace(size, rounds=given.rounds or size.rounds)
    about = hardware(("torch", "transformers"), random_model.SEED)
    about += f", {torch.get_num_threads()} CPU threads"
    print(about)
    print(head())
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        built = models.build(Path(folder), size.layers, size.few)
        plain = engine(built.large, None, max(size.at_once))
        try:
            for method in methods(built):
                for row in compare(built, method, plain, size):
                    rows.append(row)
                    print(line(row), flush=True)
        finally:
            plain.close()
    if given.markdown is not None:
        given.markdown.write_text(markdown(rows, about))
    return finish(rows, given.json)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("bench_drafting", __doc__)
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of each load (5; --quick: 1)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: PyTorch's default")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
