"""Vectors and scores equal transformers' hidden states and logits, however they are computed."""

import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from protocol.errors import ConfigError
from protocol.pooling import Pooler, PoolingParams, unpacked
from protocol.types import EncodeRequest, GenerateRequest, RequestOutput, SamplingParams
from services.engine.config import EngineConfig
from services.engine.engine import Engine
from tests.conftest import ModelDir
from tests.support.conversations import picture_cases
from tests.support.engines import DEADLINE_S, ended, engine, request_of
from tests.support.pooling_models import (
    NO,
    YES,
    embedding_model,
    picture_vector_of,
    score_of,
    vector_of,
)
from tests.support.tiny_models import build

EMBED = Pooler("embed", 64)
SCORE = Pooler("score", 1, normalize=False, score_tokens=(YES, NO))
PROMPTS = ([5, 6, 7], list(range(40, 110)), [9])
REL, ABS = 1e-4, 1e-5


def wanted(name: str, token_ids: list[int], **pooling: Any) -> GenerateRequest:
    params = PoolingParams(**pooling)
    return GenerateRequest(name, token_ids, SamplingParams(max_tokens=1), pooling=params)


def answers(
    worker: Engine,
    requests: list[GenerateRequest],
    media: list[EncodeRequest] = [],  # noqa: B006
) -> list[RequestOutput]:
    """What each request ends with, all asked at once; nothing is leaked."""
    for one in media:
        assert worker.encode is not None
        worker.encode.add(one)
    assert worker.generate is not None
    for request in requests:
        assert worker.generate.add(request) == []
    found: dict[str, RequestOutput] = {}
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        time.sleep(min(worker.wait_s, 0.001))
        for output in worker.step()[0]:
            found[output.request_id] = output
        if len(found) == len(requests):
            assert worker.check_integrity() == []
            return [found[request.request_id] for request in requests]
    raise AssertionError("requests did not end")


def vectors(worker: Engine, prompts: Any = PROMPTS, **pooling: Any) -> list[list[float]]:
    requests = [wanted(f"r{i}", list(prompt), **pooling) for i, prompt in enumerate(prompts)]
    return [unpacked(output.pooled) for output in answers(worker, requests)]


def near(found: list[list[float]], expected: list[list[float]]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=REL, abs=ABS)


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("budget", [7, 2048])
def test_a_vector_is_the_last_tokens_hidden_state(
    family: str, budget: int, model_dir: ModelDir
) -> None:
    path = model_dir(family)
    worker = engine(path, pooler=EMBED, max_num_batched_tokens=budget)
    near(vectors(worker), [vector_of(path, list(prompt)) for prompt in PROMPTS])
    worker.close()


@pytest.mark.parametrize("family", ["qwen3", "llama"])  # a tied head, and one of its own
def test_a_base_models_weights_are_read(family: str, model_dir: ModelDir, tmp_path: Path) -> None:
    path = model_dir(family)
    bare = embedding_model(path, tmp_path / "bare", bare=True)
    worker = engine_of(bare, pooler=EMBED)
    near(vectors(worker), [vector_of(path, list(prompt)) for prompt in PROMPTS])
    worker.close()


def engine_of(path: Path, **options: Any) -> Engine:
    """Of a directory that transformers' own classes with a head do not read."""
    values = {"parts": ("language",), "dtype": "float32", "num_blocks": 256, **options}
    config = EngineConfig(model_dir=str(path), model=path.name, revision="test", **values)
    return Engine(config, lambda: None)


def test_bfloat16_points_the_same_way(model_dir: ModelDir) -> None:
    path = model_dir("qwen3")
    worker = engine(path, pooler=EMBED, dtype="bfloat16")
    for found, prompt in zip(vectors(worker), PROMPTS, strict=True):
        cosine = sum(a * b for a, b in zip(found, vector_of(path, list(prompt)), strict=True))
        assert 0.995 < cosine < 1.001
    worker.close()


def test_a_known_prefix_gives_the_same_vector(model_dir: ModelDir) -> None:
    path = model_dir("qwen3")
    worker = engine(path, pooler=EMBED)
    prompt = list(range(40, 110))
    (first,) = vectors(worker, [prompt])
    (output,) = answers(worker, [wanted("again", prompt)])
    assert (output.cached_tokens or 0) >= 48 and output.token_ids == []
    assert output.finish_reason == "stop"
    near([unpacked(output.pooled)], [first])
    worker.close()


def test_dimensions_are_cut_before_the_length_is_made_one(model_dir: ModelDir) -> None:
    path = model_dir("qwen3")
    worker = engine(path, pooler=EMBED)
    near(vectors(worker, dimensions=8), [vector_of(path, list(p), 8) for p in PROMPTS])
    (raw,) = vectors(worker, [PROMPTS[0]], normalize=False)
    (unit,) = vectors(worker, [PROMPTS[0]])
    length = sum(x * x for x in raw) ** 0.5
    assert length > 2.0
    near([[x / length for x in raw]], [unit])
    worker.close()


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
@pytest.mark.parametrize("budget", [17, 2048])
def test_vectors_of_pictures(family: str, budget: int, model_dir: ModelDir) -> None:
    path = model_dir(family)
    cases = picture_cases()
    worker = engine(path, pooler=EMBED, max_num_batched_tokens=budget)
    made = [request_of(path, case, f"r{i}", max_tokens=1) for i, case in enumerate(cases)]
    for request, _ in made:
        request.pooling = PoolingParams()
    media = [encode for _, encode in made if encode.items]
    outputs = answers(worker, [request for request, _ in made], media)
    found = [unpacked(output.pooled) for output in outputs]
    near(found, [picture_vector_of(path, case) for case in cases])
    worker.close()


@pytest.mark.parametrize("family", ["qwen3", "llama"])  # a tied head, and one of its own
def test_a_score_is_how_likely_yes_is(family: str, model_dir: ModelDir) -> None:
    path = model_dir(family)
    worker = engine(path, pooler=SCORE, max_num_batched_tokens=16)
    found = vectors(worker, task="score", dimensions=1)
    near(found, [[score_of(path, list(prompt))] for prompt in PROMPTS])
    assert len({round(score, 3) for (score,) in found}) == len(PROMPTS)
    worker.close()


def test_what_a_model_does_not_do_is_refused(model_dir: ModelDir) -> None:
    worker = engine(model_dir("qwen3"), pooler=EMBED, max_model_len=64)
    assert worker.generate is not None

    def refusal(request: GenerateRequest) -> tuple[str | None, str]:
        (output,) = worker.add(request)
        assert output.error is not None and output.error.status == 400
        return output.error.param, output.error.message

    text = GenerateRequest("t", [5, 6], SamplingParams(max_tokens=2))
    assert refusal(text) == ("model", "model: it answers embeddings only, at /v1/embeddings")
    assert refusal(wanted("s", [5], task="score"))[0] == "model"
    assert refusal(wanted("d", [5], dimensions=65))[0] == "dimensions"
    param, said = refusal(wanted("l", [5] * 65))
    assert param == "token_ids" and "65" in said and "limit of 64" in said
    near(vectors(worker, [[5] * 64]), [vector_of(model_dir("qwen3"), [5] * 64)])
    worker.close()


def test_a_model_that_generates_answers_no_vectors(model_dir: ModelDir) -> None:
    worker = engine(model_dir("qwen3"))
    (output,) = worker.add(wanted("r", [5, 6]))
    assert output.error is not None
    assert (output.error.status, output.error.param) == (400, "model")
    assert "generates text" in output.error.message
    worker.close()


def test_an_infinite_hidden_state_fails_its_request_alone(tmp_path: Path) -> None:
    path = build("llama", tmp_path / "broken")
    weights = load_file(path / "model.safetensors")
    weights["model.embed_tokens.weight"][77] = float("nan")
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    worker = engine(path, pooler=EMBED)
    good, bad = answers(worker, [wanted("good", [5, 6]), wanted("bad", [5, 77])])
    assert len(unpacked(good.pooled)) == 64 and good.error is None
    assert bad.error is not None and "finite" in bad.error.message
    worker.close()


def test_a_request_that_is_aborted_answers_nothing(model_dir: ModelDir) -> None:
    worker = engine(model_dir("qwen3"), pooler=EMBED, max_num_batched_tokens=8)
    assert worker.generate is not None
    assert worker.add(wanted("gone", list(range(40, 110)))) == []
    worker.step()
    worker.generate.abort(["gone"])
    assert worker.add(wanted("next", [5])) == []
    assert ended(worker, "next")[-1].pooled
    assert worker.check_integrity() == []
    worker.close()


def test_a_score_needs_the_models_head(model_dir: ModelDir, tmp_path: Path) -> None:
    bare = embedding_model(model_dir("llama"), tmp_path / "bare", bare=True)
    with pytest.raises(ConfigError, match="lacks 1 weights, the first is lm_head"):
        engine_of(bare, pooler=SCORE)
