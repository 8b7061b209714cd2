"""Guessed tokens on every topology, through real processes: the answers are those of a worker that
guesses nothing, greedy and seeded."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support.clients import complete
from tests.support.conversations import LONG, asking, picture
from tests.support.reference import Messages, reference_generate
from tests.support.stack import Process, Stack, idle, proxy, running
from tests.support.thinned import thinned

TOKENS = 16
TOPOLOGIES = ("e+p+d", "e+pd", "one process")
METHODS = ("ngram", "draft_model")
CASES = (asking(picture(1), "What is in this image?"), asking(LONG))
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.7, "seed": 3, "n": 2},
    # Few tokens that come again and again, of which the draft model knows nothing.
    "repeating": {"temperature": 1.5, "seed": 3, "logit_bias": {"5": 60.0, "9": 60.0, "14": 60.0}},
}
RIGHT = {("ngram", "repeating"), ("draft_model", "greedy"), ("draft_model", "seeded")}


def guesses() -> list[Any]:
    """Each method with each kind and each topology, and each kind on each topology."""
    kept = {
        (kind, METHODS[(i + k) % 2], topology)
        for i, kind in enumerate(SAMPLING)
        for k, topology in enumerate(TOPOLOGIES)
    }
    return thinned(product(SAMPLING, METHODS, TOPOLOGIES), lambda *one: one in kept)


@dataclass
class Guessing:
    """Workers that guess by one method, and what is asked on each topology."""

    decode: Process
    fusion: Process
    servers: dict[str, Process]

    def counted(self, topology: str) -> tuple[int, int]:
        """Tokens that were guessed so far, and those of them that were right."""
        worker = self.fusion if topology == "one process" else self.decode
        counters = idle(worker)["counters"]
        return counters["draft_tokens"], counters["accepted_draft_tokens"]


@dataclass
class Served:
    stack: Stack
    plain: Process  # one process that guesses nothing
    guessing: dict[str, Guessing]  # by method


@pytest.fixture(scope="module")
def served(model_dir: ModelDir) -> Iterator[Served]:
    with running(model_dir("qwen2_5_vl")) as stack:
        encode, prefill, plain = (
            stack.start(f"services.{name}") for name in ("encoder", "prefill", "pdfusion")
        )
        pairs = {
            method: [
                stack.start(f"services.{name}", *_flags(method, stack))
                for name in ("decode", "pdfusion")
            ]
            for method in METHODS
        }
        workers = list(stack.processes)
        for worker in workers:
            worker.wait_ready()
        yield Served(
            stack,
            plain,
            {
                method: Guessing(
                    decode,
                    fusion,
                    {
                        "e+p+d": proxy(stack, [encode], [prefill], [decode]),
                        "e+pd": proxy(stack, [encode], [], [decode]),
                        "one process": fusion,
                    },
                )
                for method, (decode, fusion) in pairs.items()
            },
        )
        for worker in workers:
            idle(worker)
        assert set(stack.stop()) == {0}


def _flags(method: str, stack: Stack) -> tuple[str, str]:
    """The draft model has the large one's weights, but sees no pictures."""
    options: dict[str, dict[str, Any]] = {
        "ngram": {"prompt_lookup_min": 1},
        "draft_model": {"model": str(stack.model)},
    }
    # All that may be guessed is: how much of it pays on this machine is not what is tested.
    config = {"method": method, "num_speculative_tokens": 3, "adaptive": False, **options[method]}
    return "--speculative-config", json.dumps(config)


def answers(server: Process, kind: str) -> list[list[list[int]]]:
    """Token ids of every choice of each case, all asked at the same moment."""

    def one(case: Messages) -> list[list[int]]:
        answer = complete(server, case, max_tokens=TOKENS, ignore_eos=True, **SAMPLING[kind])
        return [choice["token_ids"] for choice in answer["choices"]]

    with ThreadPoolExecutor(len(CASES)) as pool:
        return list(pool.map(one, CASES))


@pytest.fixture(scope="module")
def expected(served: Served) -> dict[str, list[list[list[int]]]]:
    """What the worker answers that guesses nothing."""
    return {kind: answers(served.plain, kind) for kind in SAMPLING}


def test_answers_without_guesses_are_those_of_generate(
    served: Served, expected: dict[str, list[list[list[int]]]]
) -> None:
    for case, choices in zip(CASES, expected["greedy"], strict=True):
        assert choices == [reference_generate(served.stack.model, case, TOKENS, ignore_eos=True)]


@pytest.mark.parametrize(("kind", "method", "topology"), guesses())
def test_answers_are_those_without_guesses(
    kind: str,
    method: str,
    topology: str,
    served: Served,
    expected: dict[str, list[list[list[int]]]],
) -> None:
    guessing = served.guessing[method]
    before = guessing.counted(topology)
    assert answers(guessing.servers[topology], kind) == expected[kind]
    after = guessing.counted(topology)
    tried, right = (now - then for now, then in zip(after, before, strict=True))
    assert tried > right
    assert right > 0 or (method, kind) not in RIGHT
