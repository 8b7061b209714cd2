"""Encoders of text: batches of whole inputs equal transformers' answers to each alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from protocol.errors import ConfigError
from protocol.pooling import Pooler, PoolingParams, unpacked
from protocol.types import GenerateRequest, SamplingParams
from services.engine.config import EngineConfig
from services.engine.engine import Engine
from tests.support.thinned import diagonal
from tests.support.tiny_encoders import KINDS, LABELS, build_encoder, encoded_vector, head_logits

INPUTS = ([5, 6, 7], list(range(40, 110)), [9], list(range(60, 90)), list(range(50, 105)))
REL, ABS = 1e-4, 1e-5


def engine(path: Path, pooler: Pooler, **options: Any) -> Engine:
    values = {"parts": ("language",), "dtype": "float32", "max_model_len": 128, **options}
    config = EngineConfig(
        model_dir=str(path), model=path.name, revision="test", pooler=pooler, **values
    )
    return Engine(config, lambda: None)


def answers(worker: Engine, *params: PoolingParams, inputs: Any = INPUTS) -> list[list[float]]:
    """Of all inputs, asked at once; nothing is leaked."""
    assert worker.generate is not None
    waiting = {}
    for index, given in enumerate(inputs):
        wanted = params[index % len(params)]
        request = GenerateRequest(
            f"r{index}", list(given), SamplingParams(max_tokens=1), pooling=wanted
        )
        assert worker.generate.add(request) == []
        waiting[request.request_id] = index
    found: dict[int, list[float]] = {}
    for _ in range(100):
        for output in worker.step()[0]:
            assert output.error is None, output.error
            found[waiting[output.request_id]] = unpacked(output.pooled)
        if len(found) == len(waiting):
            assert worker.check_integrity() == []
            worker.close()
            return [found[index] for index in range(len(waiting))]
    raise AssertionError("requests did not end")


def near(found: list[list[float]], expected: list[list[float]]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=REL, abs=ABS)


@pytest.mark.parametrize(("kind", "pooling"), diagonal(list(KINDS), ["mean", "cls"]))
def test_vectors_of_a_batch_equal_those_of_each_alone(
    kind: str, pooling: Any, tmp_path: Path
) -> None:
    path = build_encoder(tmp_path / kind, kind)
    pooler = Pooler("embed", 64, encoder=True, pooling=pooling)
    found = answers(engine(path, pooler), PoolingParams())
    near(found, [encoded_vector(path, list(given), pooling) for given in INPUTS])


def test_an_input_is_never_split(tmp_path: Path) -> None:
    """Steps are smaller than some of the inputs."""
    path = build_encoder(tmp_path / "bert")
    worker = engine(path, Pooler("embed", 64, encoder=True, pooling="mean"),
                    max_num_batched_tokens=8, max_num_seqs=2)  # fmt: skip
    found = answers(worker, PoolingParams(), inputs=(*INPUTS, *INPUTS))
    near(found, 2 * [encoded_vector(path, list(given)) for given in INPUTS])
    assert worker.counters()["preemptions"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_classes_have_probabilities(kind: str, tmp_path: Path) -> None:
    path = build_encoder(tmp_path / kind, kind, labels=LABELS)
    logits = [head_logits(path, list(given)) for given in INPUTS]
    pooler = Pooler("classify", 3, normalize=False, encoder=True, labels=LABELS,
                    activation="softmax")  # fmt: skip
    found = answers(engine(path, pooler), PoolingParams("classify", 3))
    near(found, [torch.softmax(one, -1).tolist() for one in logits])
    assert len({max(range(3), key=one.__getitem__) for one in found}) > 1
    each = Pooler("classify", 3, normalize=False, encoder=True, labels=LABELS,
                  activation="sigmoid")  # fmt: skip
    found = answers(engine(path, each), PoolingParams("classify", 3))
    near(found, [torch.sigmoid(one).tolist() for one in logits])


def test_pairs_are_scored_by_their_types(tmp_path: Path) -> None:
    path = build_encoder(tmp_path / "bert", labels=("LABEL_0",))
    pooler = Pooler("score", 1, normalize=False, encoder=True, activation="sigmoid")
    params = [PoolingParams("score", 1, second=second) for second in (2, 30, 0, 10, 20)]
    found = answers(engine(path, pooler), *params)
    expected = [
        torch.sigmoid(head_logits(path, list(given), one.second)).tolist()
        for given, one in zip(INPUTS, params, strict=True)
    ]
    near(found, expected)
    other = answers(engine(path, pooler), PoolingParams("score", 1, second=50))
    assert other[1] != pytest.approx(found[1], rel=REL, abs=ABS)


@pytest.mark.parametrize("kind", ["distilbert", "xlm-roberta"])
def test_pairs_of_a_model_without_types(kind: str, tmp_path: Path) -> None:
    """A cross-encoder such as bge-reranker: where the second text begins makes no difference."""
    path = build_encoder(tmp_path / kind, kind, labels=("LABEL_0",))
    pooler = Pooler("score", 1, normalize=False, encoder=True, activation="sigmoid")
    found = answers(engine(path, pooler), PoolingParams("score", 1, second=1))
    near(found, [torch.sigmoid(head_logits(path, list(given))).tolist() for given in INPUTS])


def test_what_a_directory_lacks_is_named(tmp_path: Path) -> None:
    path = build_encoder(tmp_path / "bert")
    head = Pooler("score", 1, normalize=False, encoder=True, activation="sigmoid")
    with pytest.raises(ConfigError, match="the first is classifier"):
        engine(path, head)
    with pytest.raises(ConfigError, match="--quantization"):
        engine(path, Pooler("embed", 64, encoder=True), quantization="int8")
