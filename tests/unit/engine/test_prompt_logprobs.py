"""Scores of a prompt's own tokens: those of transformers, beside all else that the engine does."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from protocol.types import GenerateRequest, RequestOutput
from services.engine.engine import Engine
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking, picture
from tests.support.engines import ended, engine, request_of
from tests.support.reference import Inputs, Messages, load

TOP = 3


def expected(model: Path, messages: Messages) -> tuple[torch.Tensor, float]:
    """Log-probabilities float64[T − 1, vocabulary] after each token but the last, computed in
    float64; and how far off sums in float32 may be: twice as far as transformers' own are."""
    reference = load(model)
    inputs = reference.inputs(messages)
    wide = {
        name: value.double() if value.is_floating_point() else value
        for name, value in inputs.items()
    }
    with torch.inference_mode():
        truth = _logprobs(copy.deepcopy(reference.model).double(), wide)
        rounded = _logprobs(reference.model, inputs)
    tolerance = 2 * float((truth - rounded).abs().max())
    assert tolerance < 1e-3, "a wrong token would not show"
    return truth, tolerance


def _logprobs(model: Any, inputs: Inputs) -> torch.Tensor:
    return torch.log_softmax(model(**inputs).logits[0].double(), dim=-1)[:-1]


def outputs_of(worker: Engine, model: Path, messages: Messages, name: str) -> list[RequestOutput]:
    request, encode = request_of(model, messages, name, max_tokens=2, prompt_logprobs=TOP)
    if encode.items:
        assert worker.encode is not None
        worker.encode.add(encode)
    assert worker.generate is not None and worker.generate.add(request) == []
    return ended(worker, name)


def check(outputs: list[RequestOutput], model: Path, messages: Messages) -> None:
    first, *later = outputs
    truth, tolerance = expected(model, messages)
    tokens = load(model).inputs(messages)["input_ids"][0, 1:].tolist()
    scores = first.prompt_logprobs
    assert scores is not None and [score.token_id for score in scores] == tokens
    chosen = truth.gather(1, torch.tensor(tokens)[:, None])
    assert [s.logprob for s in scores] == pytest.approx(chosen[:, 0].tolist(), abs=tolerance)
    # Which of two tokens is the likelier is chance where both may be off by so much.
    first_rank = (truth > chosen + 2 * tolerance).sum(-1) + 1
    last_rank = (truth >= chosen - 2 * tolerance).sum(-1)
    ranks = torch.tensor([s.rank for s in scores])
    assert ((first_rank <= ranks) & (ranks <= last_rank)).all()
    top = [[other.logprob for other in score.top_logprobs] for score in scores]
    likeliest = truth.topk(TOP).values.numpy()
    assert torch.tensor(top).numpy() == pytest.approx(likeliest, abs=tolerance)
    assert all(output.prompt_logprobs is None for output in later)


@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl"])
def test_scores_are_those_of_transformers(family: str, model_dir: ModelDir) -> None:
    """In chunks, beside others, and although the prompt is in the prefix cache."""
    model = model_dir(family)
    worker = engine(model, max_num_batched_tokens=64)
    assert worker.generate is not None
    scheduler = worker.generate.scheduler
    scheduler.limits = replace(scheduler.limits, scored_tokens=16)
    messages = asking(LONG) if family == "llama" else asking(picture(1), LONG)
    other, _ = request_of(model, asking(LONG), "other", max_tokens=30)
    assert worker.generate.add(other) == []
    for number in range(2):
        check(outputs_of(worker, model, messages, f"r{number}"), model, messages)
    worker.close()


def test_each_step_scores_few_tokens(model_dir: ModelDir) -> None:
    worker = engine(model_dir("llama"))
    generate = worker.generate
    assert generate is not None
    prompts = [[token % 200 + 4 for token in range(300)] for _ in range(3)]
    for number, ids in enumerate(prompts):
        request, _ = request_of(model_dir("llama"), asking("x"), f"r{number}", prompt_logprobs=0)
        asked = GenerateRequest(request.request_id, ids, request.sampling)
        assert generate.add(asked) == []
    chunks = generate.begin()
    assert sum(chunk.count for chunk in chunks) == generate.scheduler.limits.scored_tokens < 900
    worker.close()
