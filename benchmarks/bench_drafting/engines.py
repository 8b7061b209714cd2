"""An engine in this process, with or without guesses, and what a load takes it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from protocol.types import GenerateRequest, SamplingParams
from services.engine.config import EngineConfig, Speculation
from services.engine.engine import Engine

PROMPT = 64
FIRST, VOCABULARY = 100, 600  # ordinary tokens of the demonstration model's tokenizer
# The logits of random weights lie close together: none of the tokens that are drawn from is much
# likelier than another at this temperature, and no other token comes at all.
_EVENLY, _SURELY = 2.0, 100.0
_PATIENCE_S = 1800.0


@dataclass(frozen=True)
class Load:
    """`at_once` answers of `output` tokens. `choices`: from how many tokens each is drawn, about
    evenly; 0: the likeliest of all tokens is taken."""

    choices: int
    at_once: int
    output: int

    @property
    def name(self) -> str:
        drawn = f"drawn of {self.choices}" if self.choices else "greedy"
        return f"{drawn}, {self.at_once} at once"

    def sampling(self, number: int) -> SamplingParams:
        if not self.choices:
            return SamplingParams(max_tokens=self.output, ignore_eos=True, temperature=0.0)
        allowed = dict.fromkeys(range(FIRST, FIRST + self.choices), _SURELY)
        return SamplingParams(
            max_tokens=self.output, ignore_eos=True, temperature=_EVENLY, seed=number,
            logit_bias=allowed,
        )  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """Output tokens/s, prompts included; tokens that were guessed, and that were right."""

    tokens_s: float
    guessed: int
    right: int
    answers: tuple[tuple[int, ...], ...]


def engine(model: Path, guesses: Speculation | None, most: int) -> Engine:
    """For up to `most` requests at once. Nothing is kept from one load to the next."""
    config = EngineConfig(
        model_dir=str(model), model=model.name, revision="", parts=("language",),
        dtype="bfloat16", speculation=guesses, max_num_seqs=most, num_blocks=64 * most,
        prefix_caching=False,
    )  # fmt: skip
    return Engine(config, lambda: None)


def measure(worker: Engine, load: Load) -> Figures:
    """From the first prompt's step to the last answer's end. `RuntimeError` if one fails."""
    assert worker.generate is not None
    before = worker.counters()
    random = np.random.default_rng(load.at_once)
    answers: dict[str, list[int]] = {}
    for number in range(load.at_once):
        prompt = random.integers(FIRST, VOCABULARY, PROMPT).tolist()
        answers[f"{number}"] = []
        worker.generate.add(GenerateRequest(f"{number}", prompt, load.sampling(number)))
    begun, left = time.perf_counter(), load.at_once
    while left:
        for output in worker.step()[0]:
            if output.error is not None:
                raise RuntimeError(f"{load.name}: {output.error}")
            answers[output.request_id] += output.token_ids
            left -= output.finish_reason is not None
        if time.perf_counter() - begun > _PATIENCE_S:
            raise RuntimeError(f"{load.name}: not done after {_PATIENCE_S:.0f} s")
    took = time.perf_counter() - begun
    after = worker.counters()
    guessed, right = (
        int(after[name] - before[name]) for name in ("draft_tokens", "accepted_draft_tokens")
    )
    made = tuple(tuple(answer) for answer in answers.values())
    return Figures(sum(map(len, made)) / took, guessed, right, made)
