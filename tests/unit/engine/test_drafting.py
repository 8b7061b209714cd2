"""Guessed tokens that a step checks: answers stay what they are without guesses, token for token,
and take fewer steps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from protocol.errors import ConfigError
from services.engine.config import Speculation, parse_speculation
from services.engine.drafting.prompt_lookup import continuation
from services.engine.engine import Engine
from tests.conftest import ModelDir
from tests.support.conversations import picture_cases, text_cases
from tests.support.engines import engine, request_of, run

GUESSES = Speculation(
    num_speculative_tokens=4, prompt_lookup_min=1, prompt_lookup_max=3, adaptive=False
)
# Few tokens that come again and again, as in a form that is filled in: guesses are often right.
FEW = dict.fromkeys((5, 9, 14, 23), 60.0)
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 1.5, "seed": 3, "logit_bias": FEW},
    "cut": {"temperature": 1.0, "seed": 4, "top_k": 3, "top_p": 0.9, "logit_bias": FEW},
    "choices": {"temperature": 1.5, "seed": 5, "n": 3, "logit_bias": FEW},
    "logprobs": {"temperature": 1.5, "seed": 6, "logprobs": 2, "logit_bias": FEW},
    "stop token": {"temperature": 1.5, "seed": 7, "stop_token_ids": [14], "logit_bias": FEW},
    "least": {"seed": 8, "temperature": 1.5, "min_tokens": 9, "stop_token_ids": [9],
              "logit_bias": FEW},
    "penalties": {"temperature": 1.0, "seed": 9, "presence_penalty": 0.5, "logit_bias": FEW},
}  # fmt: skip


def answers(
    worker: Engine, path: Path, cases: list[Any], **sampling: Any
) -> dict[tuple[str, int], list[int]]:
    found = answered(worker, path, cases, **sampling)
    worker.close()
    return found


def answered(
    worker: Engine, path: Path, cases: list[Any], **sampling: Any
) -> dict[tuple[str, int], list[int]]:
    """By an engine that stays, and forgets them."""
    options = {"max_tokens": 16, "ignore_eos": True, **sampling}
    found = run(
        worker, [request_of(path, case, f"r{i}", **options) for i, case in enumerate(cases)]
    )
    assert worker.check_integrity() == []
    worker.reset_caches(prefix=True, encoder=True)
    return found


@pytest.fixture(scope="module")
def two(model_dir: ModelDir) -> Iterator[list[Engine]]:
    """An engine without guesses and one with them."""
    path = model_dir("qwen2_5_vl")
    workers = [engine(path), engine(path, speculation=GUESSES)]
    yield workers
    for worker in workers:
        worker.close()


@pytest.mark.parametrize("kind", SAMPLING)
def test_answers_are_what_they_are_without_guesses(
    kind: str, two: list[Engine], model_dir: ModelDir
) -> None:
    path, cases, (plain, guessing) = model_dir("qwen2_5_vl"), picture_cases()[1:4], two
    expected = answered(plain, path, cases, **SAMPLING[kind])
    before = guessing.counters()
    assert answered(guessing, path, cases, **SAMPLING[kind]) == expected
    guessed, right = (
        guessing.counters()[name] - before[name]
        for name in ("draft_tokens", "accepted_draft_tokens")
    )
    assert (guessed > 0) == (kind != "penalties")
    assert right <= guessed


def test_answers_do_not_depend_on_how_much_of_it_pays(model_dir: ModelDir) -> None:
    """Steps with all guesses, with some and with none come by turns, by measured times."""
    path, cases = model_dir("qwen3"), text_cases()
    long: dict[str, Any] = {**SAMPLING["seeded"], "max_tokens": 60}
    guessing = engine(path, speculation=msgspec.structs.replace(GUESSES, adaptive=True))
    assert answers(guessing, path, cases, **long) == answers(engine(path), path, cases, **long)
    assert 0 < guessing.counters()["drafts"] < guessing.counters()["generation_tokens"]


@pytest.mark.parametrize("family", ["gemma3", "llama"])
def test_other_families_do_not_differ_either(family: str, model_dir: ModelDir) -> None:
    path, cases = model_dir(family), text_cases()
    expected = answers(engine(path), path, cases, **SAMPLING["seeded"])
    guessing = engine(path, speculation=GUESSES)
    assert answers(guessing, path, cases, **SAMPLING["seeded"]) == expected


def test_right_guesses_save_steps(model_dir: ModelDir) -> None:
    path, cases = model_dir("qwen3"), text_cases()[:1]
    two = {"temperature": 1.0, "seed": 1, "logit_bias": dict.fromkeys((5, 9), 90.0)}
    plain, guessing = engine(path), engine(path, speculation=GUESSES)
    assert answers(guessing, path, cases, **two) == answers(plain, path, cases, **two)
    counted = guessing.counters()
    assert counted["accepted_draft_tokens"] > 0
    assert counted["steps"] == plain.counters()["steps"] - counted["accepted_draft_tokens"]
    most = GUESSES.num_speculative_tokens
    assert counted["draft_tokens"] <= most * counted["drafts"], "one for each step that guesses"
    assert counted["steps"] / 4 < counted["drafts"] < 0.75 * counted["steps"]


def test_a_tiny_pool_guesses_only_with_blocks_to_spare(model_dir: ModelDir) -> None:
    path, cases = model_dir("qwen2_5_vl"), picture_cases() * 2
    small: dict[str, Any] = {"num_blocks": 14, "max_num_batched_tokens": 64}
    expected = answers(engine(path, **small), path, cases, **SAMPLING["seeded"])
    guessing = engine(path, speculation=GUESSES, **small)
    assert answers(guessing, path, cases, **SAMPLING["seeded"]) == expected


def test_none_are_guessed_for_a_large_batch(model_dir: ModelDir) -> None:
    path, cases = model_dir("qwen3"), text_cases()[:1] * 3
    few = Speculation(prompt_lookup_min=1, disable_by_batch_size=2)
    guessing = engine(path, speculation=few, prefix_caching=False)
    answers(guessing, path, cases, **SAMPLING["greedy"])
    assert guessing.counters()["drafts"] == 0


@pytest.mark.parametrize(
    ("tokens", "guess"),
    [
        ([1, 2, 3, 4, 5, 1, 2, 3], [4, 5, 1, 2]),
        ([1, 2, 9, 1, 2, 8, 7, 1, 2], [8, 7, 1, 2]),  # the latest
        ([4, 1, 2, 9, 6, 3, 1, 2, 8, 4, 1, 2], [9, 6, 3, 1]),  # the longest before the latest
        ([7, 5, 5], [5, 5, 5, 5]),  # repeats itself
        ([3, 1, 2, 1, 2], [1, 2, 1, 2]),
        ([1, 2, 3], []),
        ([3, 9, 3], []),  # one token is fewer than two
        ([3], []),
    ],
)
def test_what_followed_before_is_guessed(tokens: list[int], guess: list[int]) -> None:
    shortest = 1 if tokens == [7, 5, 5] else 2
    assert continuation(np.array(tokens), shortest, 3, 4) == guess


def test_the_flag_takes_vllms_object() -> None:
    text = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 5}'
    assert parse_speculation(text) == Speculation("ngram", 3, 2, 5)
    small = '{"model": "/models/small", "num_speculative_tokens": 5}'
    assert parse_speculation(small) == Speculation("draft_model", 5, model="/models/small")
    assert parse_speculation('{"num_speculative_tokens": 5}') == Speculation("ngram", 5)
    assert parse_speculation("") is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "truncated"),
        ('{"method": "eagle"}', "method"),
        ('{"num_speculative_tokens": 0}', "num_speculative_tokens"),
        ('{"prompt_lookup_min": 5}', "prompt_lookup_min"),
        ('{"tokens": 5}', "tokens"),
        ('{"method": "draft_model"}', "model"),
        ('{"method": "ngram", "model": "/models/small"}', "model"),
    ],
)
def test_a_wrong_object_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        parse_speculation(text)
    assert "--speculative-config" in caught.value.message
