"""transformers on the same model and cores, without a server: a program that prints JSON lines.

    python -m benchmarks.bench_engine.transformers_peer MODEL LOAD...

A LOAD is prompt,output,at_once. `generate` computes all requests of a load as one batch that begins
and ends together; continuous batching gets them as a list. Neither takes an HTTP request, tokenizes
or detokenizes, which flatters both.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, GenerationConfig, LogitsProcessor

GENERATE, CONTINUOUS = "transformers generate", "transformers continuous batching"
SEED = 7


@dataclass
class _Steps(LogitsProcessor):  # type: ignore[misc]  # no types there
    """Notes when each step's logits were there."""

    times: list[float] = field(default_factory=list)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return scores


def generated(model: Any, prompt: int, output: int, at_once: int) -> dict[str, float]:
    """Tokens/s of a batch, and ms to its first tokens and for each further step."""
    steps = _Steps()
    begun = time.perf_counter()
    model.generate(
        _prompts(model, prompt, at_once), logits_processor=[steps], do_sample=False,
        max_new_tokens=output, min_new_tokens=output,
    )  # fmt: skip
    took = time.perf_counter() - begun
    times = steps.times
    return {
        "tokens_s": at_once * output / took,
        "ttft_ms": 1e3 * (times[0] - begun),
        "tpot_ms": 1e3 * (times[-1] - times[0]) / max(1, len(times) - 1),
    }


def continuous(model: Any, prompt: int, output: int, at_once: int) -> dict[str, float]:
    """Tokens/s of all; what single requests see it does not say."""
    wanted = GenerationConfig(
        max_new_tokens=output, do_sample=False, eos_token_id=-1,
        pad_token_id=model.generation_config.pad_token_id or 0,
    )  # fmt: skip
    prompts = _prompts(model, prompt, at_once).tolist()
    begun = time.perf_counter()
    answers = model.generate_batch(prompts, generation_config=wanted, progress_bar=False)
    took = time.perf_counter() - begun
    tokens = sum(len(answer.generated_tokens) for answer in answers.values())
    return {"tokens_s": tokens / took}


def _prompts(model: Any, tokens: int, count: int) -> torch.Tensor:
    """int64[count, tokens] of ordinary tokens."""
    random = torch.Generator().manual_seed(SEED)
    vocabulary = model.config.get_text_config().vocab_size
    return torch.randint(100, vocabulary, (count, tokens), generator=random)


def main(argv: list[str]) -> int:
    model = AutoModelForImageTextToText.from_pretrained(
        Path(argv[0]), dtype=torch.bfloat16, local_files_only=True
    ).eval()
    for load in argv[1:]:
        numbers = [int(part) for part in load.split(",")]
        for name, measure in ((GENERATE, generated), (CONTINUOUS, continuous)):
            try:
                found: dict[str, Any] = measure(model, *numbers)
            except Exception as error:  # it is said in the table
                found = {"error": f"{type(error).__name__}: {error}"[:200]}
            print(json.dumps({"name": name, "load": load, **found}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
