"""The engine, in this process, gives the tokens of transformers' `generate()`."""

import json
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from services.engine.engine import Engine
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking, picture, picture_cases, text_cases
from tests.support.engines import at_once, engine, request_of
from tests.support.reference import Messages, reference_generate
from tests.support.thinned import thinned
from tests.support.tiny_models import FAMILIES, STATEFUL_FAMILY, TEXT_FAMILIES, build

TOKENS = 8
PLAIN = ("qwen2_5_vl", "llava_onevision", "gemma3", "llama")  # weights as they are in the file


def expected(path: Path, cases: list[Messages]) -> list[list[int]]:
    return [reference_generate(path, case, TOKENS, ignore_eos=True) for case in cases]


def served(worker: Engine, path: Path, cases: list[Messages]) -> list[list[int]]:
    """All cases at once; the engine must have leaked nothing afterwards."""
    return at_once(worker, path, cases, TOKENS)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_equals_generate(family: str, model_dir: ModelDir) -> None:
    path = model_dir(family)
    cases = text_cases() if family in TEXT_FAMILIES else picture_cases()
    budget = 96 if family.startswith("gemma") else 40
    worker = engine(path, max_num_batched_tokens=budget, max_num_seqs=8)
    assert served(worker, path, cases) == expected(path, cases)
    worker.close()


@pytest.mark.parametrize(
    "family", thinned([(family,) for family in FAMILIES], lambda family: family in PLAIN)
)
def test_plain_weights_give_the_same_tokens(family: str, model_dir: ModelDir) -> None:
    path = model_dir(family)
    cases = text_cases() if family in TEXT_FAMILIES else picture_cases()
    worker = engine(path, max_num_batched_tokens=96, max_num_seqs=8, weight_layout="plain")
    assert served(worker, path, cases) == expected(path, cases)
    worker.close()


@pytest.mark.parametrize("budget", [5, pytest.param(17, marks=pytest.mark.slow), 4096])
def test_chunks_may_end_inside_a_picture(budget: int, model_dir: ModelDir) -> None:
    path = model_dir("qwen2_5_vl")
    cases = picture_cases()
    worker = engine(path, max_num_batched_tokens=budget)
    assert served(worker, path, cases) == expected(path, cases)


def test_preemption_under_a_tiny_pool(model_dir: ModelDir) -> None:
    path = model_dir("qwen2_5_vl")
    cases = picture_cases() * 2
    worker = engine(path, num_blocks=14, max_num_batched_tokens=64)
    assert served(worker, path, cases) == expected(path, cases)
    assert worker.counters()["preemptions"] > 0


def test_a_shared_prefix_with_a_picture_is_computed_once(model_dir: ModelDir) -> None:
    path = model_dir("qwen2_5_vl")
    worker = engine(path)
    cases = [asking(picture(1), f"{LONG} Then tell me {what}.") for what in ("why", "how")]
    first, second = (served(worker, path, [case])[0] for case in cases)
    assert [first, second] == expected(path, cases)
    cached = worker.counters()["cached_tokens"]
    assert cached >= 64
    assert worker.counters()["mm_encoded"] == 1


def test_another_picture_of_the_same_size_shares_nothing_behind_it(model_dir: ModelDir) -> None:
    path = model_dir("qwen2_5_vl")
    worker = engine(path)
    cases = [asking(picture(seed), LONG) for seed in (1, 2)]
    for case in cases:
        assert served(worker, path, [case]) == expected(path, [case])
    assert worker.counters()["cached_tokens"] < 32


def test_prefix_caching_can_be_off(model_dir: ModelDir) -> None:
    path = model_dir("qwen2_5_vl")
    worker = engine(path, prefix_caching=False)
    case = asking(picture(1), LONG)
    for _ in range(2):
        assert served(worker, path, [case]) == expected(path, [case])
    assert worker.counters()["cached_tokens"] == 0


def test_a_cached_prefix_ending_inside_a_picture_is_right(model_dir: ModelDir) -> None:
    """Gemma's pictures see both ways: a hit that ends inside one must not cut it."""
    path = model_dir("gemma3")
    cases = [asking("Look:", picture(1), text) for text in ("one", "two")]
    for size in (4, 8):
        worker = engine(path, block_size=size, num_blocks=512)
        for case in cases:
            assert served(worker, path, [case]) == expected(path, [case])
        assert worker.counters()["cached_tokens"] > 0


def test_a_model_with_other_state_is_refused(tmp_path: Path) -> None:
    path = build(STATEFUL_FAMILY, tmp_path / "stateful")
    with pytest.raises(ConfigError, match="linear_attention"):
        engine(path)


def test_inputs_of_each_layer_are_refused(tmp_path: Path) -> None:
    path = build("gemma4", tmp_path)
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["hidden_size_per_layer_input"] = 8
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="hidden_size_per_layer_input"):
        engine(path)


def test_a_request_larger_than_the_pool_is_refused_not_stuck(model_dir: ModelDir) -> None:
    path = model_dir("qwen2_5_vl")
    worker = engine(path, num_blocks=4)
    generate, _ = request_of(path, asking("Hello"), "r", max_tokens=100)
    assert worker.generate is not None
    (output,) = worker.generate.add(generate)
    assert output.error is not None
    assert output.error.code == "context_length_exceeded"
