"""Sampling: reproducible anywhere, and shaped by its parameters."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from protocol.types import GenerateRequest, SamplingParams
from services.engine.model.positions import text_positions
from services.engine.sampling.sampler import Sampler, checked, uniform
from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.request import Request
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking
from tests.support.engines import engine, request_of, run

VOCABULARY = 12


def request(
    tokens: tuple[int, ...] = (), index: int = 0, prompt: tuple[int, ...] = (1, 2), **sampling: Any
) -> Request:
    source = GenerateRequest("r", list(prompt), SamplingParams(**sampling))
    return Request(source, index, 0, [*prompt, *tokens], text_positions(2), 0, None)  # type: ignore[arg-type]


def sample(logits: list[float], *requests: Request) -> list[int]:
    rows = torch.tensor([logits] * len(requests))
    return [s.token_ids[0] for s in Sampler(eos_token_ids=(0,)).sample(rows, requests)]


LOGITS = [float(v) for v in np.linspace(-2, 2, VOCABULARY)]


def draws(count: int, **sampling: Any) -> Counter[int]:
    return Counter(sample(LOGITS, *(request(seed=seed, **sampling) for seed in range(count))))


def test_uniform_numbers_are_uniform_and_independent() -> None:
    values = np.array([[uniform(s, c, p) for p in range(200)] for s in range(20) for c in (0, 1)])
    assert values.min() >= 0
    assert values.max() < 1
    histogram, _ = np.histogram(values, bins=20, range=(0, 1))
    chi_square = ((histogram - values.size / 20) ** 2 / (values.size / 20)).sum()
    assert chi_square < 45
    assert abs(np.corrcoef(values[:, :-1].ravel(), values[:, 1:].ravel())[0, 1]) < 0.05
    assert abs(np.corrcoef(values[0::2].ravel(), values[1::2].ravel())[0, 1]) < 0.05


def test_draws_follow_the_tempered_distribution() -> None:
    counts = draws(4000, temperature=1.5)
    probs = torch.softmax(torch.tensor(LOGITS) / 1.5, 0).numpy()
    observed = np.array([counts[t] for t in range(VOCABULARY)]) / 4000
    assert np.abs(observed - probs).max() < 0.03


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        ({"top_k": 3}, {9, 10, 11}),
        ({"top_p": 0.3}, {11}),
        ({"top_p": 0.5}, {10, 11}),
        ({"min_p": 0.5}, {10, 11}),
        ({"top_k": 5, "top_p": 0.99, "min_p": 0.001}, {7, 8, 9, 10, 11}),
    ],
)
def test_truncation_keeps_exactly_the_likeliest(sampling: Any, allowed: set[int]) -> None:
    assert set(draws(1500, temperature=1.0, **sampling)) == allowed


def test_a_draw_depends_on_nothing_but_seed_choice_and_position() -> None:
    alone = sample(LOGITS, request(seed=7, temperature=1.0))
    crowd = sample(
        LOGITS,
        *(request(seed=s, temperature=0.7) for s in range(5)),
        request(seed=7, temperature=1.0),
        request(temperature=0.0),
    )
    assert crowd[5] == alone[0]
    places = {
        (index, length): sample(LOGITS, request((3,) * length, index, seed=7, temperature=5.0))[0]
        for index in range(6)
        for length in range(6)
    }
    assert len(set(places.values())) > 5


def test_penalties_count_what_openai_counts() -> None:
    flat = [1.0] * VOCABULARY
    assert sample(flat, request((), temperature=0.0, frequency_penalty=1.0))[0] == 0
    assert sample(flat, request((0, 1, 0), temperature=0.0, presence_penalty=1.0))[0] == 2
    biased = [1.5, 1.0, 0.9, *[0.0] * 9]
    assert sample(biased, request((0,), temperature=0.0, frequency_penalty=0.4))[0] == 0
    assert sample(biased, request((0, 0), temperature=0.0, frequency_penalty=0.4))[0] == 1
    prompt_only = request((), temperature=0.0, presence_penalty=2.0, prompt=(0, 0))
    assert sample(biased, prompt_only)[0] == 0
    repeated = request((), temperature=0.0, repetition_penalty=2.0, prompt=(0, 0))
    assert sample(biased, repeated)[0] == 1


def test_bias_min_tokens_and_logprobs() -> None:
    best = VOCABULARY - 1
    assert sample(LOGITS, request(temperature=0.0, logit_bias={3: 100.0}))[0] == 3
    ending = [5.0, *LOGITS[1:]]
    assert sample(ending, request(temperature=0.0))[0] == 0
    assert sample(ending, request(temperature=0.0, min_tokens=1))[0] == best
    assert sample(ending, request((4,), temperature=0.0, min_tokens=1))[0] == 0
    held = request(temperature=0.0, min_tokens=1, stop_token_ids=(best,))
    assert sample(ending, held)[0] == best - 1
    (gained,) = Sampler(()).sample(torch.tensor([LOGITS]), [request(temperature=0.0, logprobs=2)])
    assert gained.logprobs is not None
    expected = torch.log_softmax(torch.tensor(LOGITS).double(), 0)
    assert gained.logprobs[0].logprob == pytest.approx(float(expected[best]))
    assert [top.token_id for top in gained.logprobs[0].top_logprobs] == [best, best - 1]
    assert gained.logprobs[0].rank == 1


def test_choices_differ_and_are_reproducible(model_dir: ModelDir) -> None:
    path = model_dir("qwen2_5_vl")
    sampling = {"temperature": 1.0, "seed": 3, "n": 3, "max_tokens": 10, "ignore_eos": True}
    whole = run(engine(path), [request_of(path, asking(LONG), "r", **sampling)])
    again = run(
        engine(path, max_num_batched_tokens=9, prefix_caching=False),
        [request_of(path, asking("noise"), "x"), request_of(path, asking(LONG), "r", **sampling)],
    )
    assert {key: tokens for key, tokens in again.items() if key[0] == "r"} == whole
    assert len({tuple(tokens) for tokens in whole.values()}) == 3


def test_a_choice_continues_from_what_it_has_emitted(model_dir: ModelDir) -> None:
    """Replay: the rest of each choice is the same wherever the break was."""
    path = model_dir("qwen2_5_vl")
    sampling = {
        "temperature": 1.0,
        "seed": 3,
        "n": 2,
        "max_tokens": 10,
        "ignore_eos": True,
        "frequency_penalty": 0.5,
    }
    generate, encode = request_of(path, asking(LONG), "r", **sampling)
    whole = run(engine(path), [(generate, encode)])
    generate.emitted = {0: whole["r", 0][:4], 1: whole["r", 1][:7]}
    rest = run(engine(path), [(generate, encode)])
    assert rest == {("r", 0): whole["r", 0][4:], ("r", 1): whole["r", 1][7:]}


NAN, INF = float("nan"), float("inf")
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.9},
    "truncated": {"temperature": 0.9, "top_p": 0.9, "top_k": 5},
    "penalized": {"temperature": 0.0, "frequency_penalty": 1.0, "min_tokens": 3},
    "logprobs": {"temperature": 0.7, "logprobs": 2},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    "row",
    [[NAN] * VOCABULARY, [*LOGITS[:4], NAN, *LOGITS[5:]], [INF, *LOGITS[1:]], [-INF] * VOCABULARY],
    ids=["NaN", "one NaN", "infinite", "none"],
)
def test_a_row_that_is_not_finite_fails_alone(row: list[float], way: dict[str, Any]) -> None:
    asked = [request(seed=seed, **way) for seed in range(3)]
    expected = [one.token_ids for one in Sampler((0,)).sample(torch.tensor([LOGITS] * 3), asked)]
    found = Sampler((0,)).sample(torch.tensor([LOGITS, row, LOGITS]), asked)
    assert [one.failure is None for one in found] == [True, False, True]
    assert [found[0].token_ids, found[2].token_ids] == [expected[0], expected[2]]
    assert found[1].failure is not None and "not finite" in found[1].failure.message
    assert (found[1].token_ids, found[1].logprobs) == ([], None)


def test_logits_of_no_probability_are_a_models_own() -> None:
    assert sample([-INF, *LOGITS[1:-1], -INF], request(temperature=0.0)) == [VOCABULARY - 2]


@pytest.mark.parametrize(("draft", "fails"), [((11, 11), True), ((3, 11), False)])
def test_a_row_behind_a_wrong_guess_fails_nothing(draft: tuple[int, ...], *, fails: bool) -> None:
    asked = request(temperature=0.0)
    rows = torch.tensor([LOGITS, [NAN] * VOCABULARY, LOGITS])
    sampled = Sampler((0,)).sample(rows, [asked] * 3, (0, 1, 2))
    (one,) = checked([Chunk(asked, 1, 1, (asked,), draft=draft)], sampled)
    assert (one.failure is not None) == fails
    assert one.token_ids == [11]
