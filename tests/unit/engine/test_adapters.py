"""LoRA adapters: tokens equal those of transformers with W + B·A, in any batch."""

import gc
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ConfigError, InvalidRequest
from protocol.kv_events import BlockStored
from services.engine.engine import Engine
from services.engine.model.adapters import Adapters, adaptable_layers
from services.engine.model.runner import Runner
from services.membership.config import parse_events
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking, picture, picture_cases, text_cases
from tests.support.engines import engine, listening, request_of, run
from tests.support.lora import merged_generate, peft_generate, write_adapter
from tests.support.random_families import HEADS, built
from tests.support.reference import Messages, reference_generate
from tests.support.remembered import remembered
from tests.support.replayed_steps import Rerun, use
from tests.support.tiny_models import TEXT_FAMILIES

TOKENS = 8
merged = remembered(merged_generate)


def serving(path: Path, folders: dict[str, Path], **options: Any) -> Engine:
    named = {name: str(folder) for name, folder in folders.items()}
    return engine(path, max_loras=4, max_lora_rank=8, lora_modules=named, **options)


def adapters_of(worker: Engine) -> Adapters:
    assert worker.adapters is not None
    return worker.adapters


def served(worker: Engine, path: Path, asked: list[tuple[Messages, str]]) -> list[list[int]]:
    """All at once, each by the model or the adapter of its name."""
    requests = []
    for number, (messages, name) in enumerate(asked):
        generate, encode = request_of(
            path, messages, f"r{number}", max_tokens=TOKENS, ignore_eos=True
        )
        generate.model = name
        requests.append((generate, encode))
    tokens = run(worker, requests)
    assert worker.check_integrity() == []
    return [tokens[f"r{number}", 0] for number in range(len(asked))]


def expected(
    path: Path, folders: dict[str, Path], asked: list[tuple[Messages, str]]
) -> list[list[int]]:
    return [
        merged(path, folders[name], messages, TOKENS)
        if name
        else reference_generate(path, messages, TOKENS, ignore_eos=True)
        for messages, name in asked
    ]


@pytest.fixture(scope="module")
def two(
    model_dir: ModelDir, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Path]]:
    """A model with pictures, and two adapters of different ranks and layers."""
    path, folder = model_dir("qwen2_5_vl"), tmp_path_factory.mktemp("adapters")
    first = write_adapter(path, folder / "a", seed=1)
    second = write_adapter(path, folder / "b", seed=2, rank=8, targets=("q_proj", "down_proj"))
    return path, {"a": first, "b": second}


@pytest.mark.parametrize("layout", ["plain", "packed"])
def test_one_batch_mixes_adapters_and_the_model(
    layout: str, two: tuple[Path, dict[str, Path]]
) -> None:
    path, folders = two
    names = ["a", "", "b"]
    asked = [(case, names[i % 3]) for i, case in enumerate([*picture_cases(), *text_cases()])]
    worker = serving(path, folders, weight_layout=layout, max_num_batched_tokens=48)
    answers = served(worker, path, asked)
    assert answers == expected(path, folders, asked)
    worker.close()


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_vl", "llava_onevision", "gemma3"])
def test_families_equal_the_merged_model(family: str, model_dir: ModelDir, tmp_path: Path) -> None:
    path = model_dir(family)
    folders = {"a": write_adapter(path, tmp_path / "a", seed=1)}
    cases = text_cases()[:2] if family in TEXT_FAMILIES else picture_cases()[1::2]
    asked = [(case, "a") for case in cases]
    worker = serving(path, folders, max_num_batched_tokens=96)
    answers = served(worker, path, asked)
    assert answers == expected(path, folders, asked)
    assert answers != expected(path, folders, [(case, "") for case in cases])
    worker.close()


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="needs the extra dev")
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen3", {"use_rslora": True}),
        ("qwen2_5_vl", {}),
        pytest.param("qwen3", {}, marks=pytest.mark.slow),
        pytest.param("qwen2_5_vl", {"use_rslora": True}, marks=pytest.mark.slow),
    ],
)
def test_an_adapter_that_peft_wrote(
    family: str, options: dict[str, Any], model_dir: ModelDir, tmp_path: Path
) -> None:
    """Its own model, which adds W·x and B·A·x as ours does, answers the same."""
    path, folder = model_dir(family), tmp_path / "a"
    cases = text_cases()[:2] if family in TEXT_FAMILIES else picture_cases()[:2]
    answers = peft_generate(path, folder, cases, TOKENS, **options)
    worker = serving(path, {"a": folder})
    assert served(worker, path, [(case, "a") for case in cases]) == answers
    assert answers != expected(path, {}, [(case, "") for case in cases])
    worker.close()


def test_a_prefix_is_reused_by_the_same_adapter_alone(
    two: tuple[Path, dict[str, Path]],
) -> None:
    path, folders = two
    worker = serving(path, folders)
    messages = asking(LONG, picture(1))
    for name, hits in [("", False), ("a", False), ("b", False), ("a", True), ("", True)]:
        before = worker.counters()["cached_tokens"]
        answer = served(worker, path, [(messages, name)])
        assert answer == expected(path, folders, [(messages, name)])
        assert (worker.counters()["cached_tokens"] > before) is hits
    worker.close()


def test_cache_events_name_the_adapter(two: tuple[Path, dict[str, Path]]) -> None:
    path, folders = two
    worker = serving(path, folders, events=parse_events("", "127.0.0.1", default=True))
    heard = listening(worker)
    for name in ("a", "", "b"):
        served(worker, path, [(asking(LONG), name)])
    stored = [event.lora_name for event in heard if isinstance(event, BlockStored)]
    assert list(dict.fromkeys(stored)) == ["a", None, "b"]
    worker.close()


def test_a_preempted_request_keeps_its_adapter(two: tuple[Path, dict[str, Path]]) -> None:
    path, folders = two
    asked = [(text_cases()[0], name) for name in ("a", "", "b", "a", "b")]
    worker = serving(path, folders, num_blocks=20, block_size=4, max_model_len=80)
    answers = served(worker, path, asked)
    assert answers == expected(path, folders, asked)
    assert worker.counters()["preemptions"] > 0
    worker.close()


def test_steps_with_an_adapter_are_not_replayed(
    two: tuple[Path, dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folders = two
    capture = Rerun()
    use(monkeypatch, capture)
    worker = serving(path, folders)
    adapted = [(text_cases()[0], "a"), (text_cases()[0], "")]
    assert served(worker, path, adapted) == expected(path, folders, adapted)
    assert not capture.replayed
    plain = [(text_cases()[1], "")]
    assert served(worker, path, plain) == expected(path, folders, plain)
    assert capture.replayed
    worker.close()


def test_other_weights_than_where_a_request_was_rendered(
    two: tuple[Path, dict[str, Path]],
) -> None:
    path, folders = two
    worker = serving(path, folders)
    generate, _ = request_of(path, text_cases()[0], "r", max_tokens=1)
    generate.model, generate.adapter_revision = "a", "of another day"
    assert worker.generate is not None
    (refused,) = worker.generate.add(generate)
    assert refused.error is not None
    assert refused.error.code == "adapter_mismatch"
    worker.close()


@pytest.mark.parametrize(("family", "head"), HEADS.items())
def test_a_head_of_any_name_is_not_adapted(family: str, head: str) -> None:
    """It sees the rows that are sampled, not all rows of a step."""
    layers = adaptable_layers(built(family))
    assert layers and all("layers." in name for name in layers)
    assert head not in layers


def test_an_unloaded_adapter_ends_with_its_last_request(
    two: tuple[Path, dict[str, Path]],
) -> None:
    path, folders = two
    worker = serving(path, folders)
    messages = text_cases()[0]
    generate, _ = request_of(path, messages, "r", max_tokens=TOKENS, ignore_eos=True)
    generate.model = "a"
    assert worker.generate is not None
    assert worker.generate.add(generate) == []
    worker.step()
    adapters_of(worker).unload("a")
    again, _ = request_of(path, messages, "s", max_tokens=1)
    again.model = "a"
    (refused,) = worker.generate.add(again)
    assert refused.error is not None
    assert refused.error.code == "model_not_found"
    placed, _ = request_of(path, messages, "t", max_tokens=1)
    placed.model, placed.adapter_revision = "a", "rendered elsewhere"
    (refused,) = worker.generate.add(placed)
    assert refused.error is not None
    assert (refused.error.status, refused.error.code) == (503, "adapter_missing")
    tokens = [t for _ in range(TOKENS) for output in worker.step()[0] for t in output.token_ids]
    assert len(tokens) >= TOKENS - 2
    worker.close()


def test_there_is_room_for_so_many(two: tuple[Path, dict[str, Path]], tmp_path: Path) -> None:
    path, folders = two
    worker = engine(path, max_loras=1, max_lora_rank=8)
    adapters = adapters_of(worker)
    adapters.load("a", folders["a"])
    adapters.load("a", folders["a"])  # nothing to do
    with pytest.raises(InvalidRequest, match="--max-loras"):
        adapters.load("b", folders["b"])
    with pytest.raises(InvalidRequest, match="other files"):
        adapters.load("a", folders["b"])
    adapters.unload("a")
    gc.collect()
    adapters.load("b", folders["b"])
    assert list(adapters.revisions) == ["b"]
    worker.close()


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({"lora_alpha": 8}, 2.0),
        ({"lora_alpha": 8, "use_rslora": True}, 4.0),
        ({"alpha_pattern": {"q_proj": 12, "down_proj": 12}}, 3.0),
    ],
)
def test_scales_are_pefts(
    config: dict[str, Any], scale: float, model_dir: ModelDir, tmp_path: Path
) -> None:
    path = model_dir("qwen3")
    targets = ("q_proj", "down_proj")
    options: dict[str, Any] = {"strength": 0.3, "targets": targets, **config}
    folder = write_adapter(path, tmp_path / "a", seed=3, **options)
    worker = serving(path, {"a": folder})
    messages = text_cases()[0]
    (answer,) = served(worker, path, [(messages, "a")])
    assert answer == merged_generate(path, folder, messages, TOKENS, scale)
    worker.close()


def test_an_adapter_of_another_model_is_refused_at_the_start(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    other = write_adapter(model_dir("gemma3"), tmp_path / "a", seed=1)
    with pytest.raises(ConfigError, match="--lora-modules: LoRA adapter 'a'"):
        serving(model_dir("qwen3"), {"a": other})


def test_steps_with_an_adapter_do_not_run_in_a_row(
    two: tuple[Path, dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be given blocks ahead for nothing."""
    path, folders = two
    use(monkeypatch, Rerun())
    launched: list[int] = []
    launch = Runner.launch
    monkeypatch.setattr(
        Runner,
        "launch",
        lambda self, chunks: (launched.append(len(chunks)), launch(self, chunks))[1],
    )
    worker = serving(path, folders)
    served(worker, path, [(asking("Hello"), "a"), (asking(LONG), "a")])
    assert launched == []
    served(worker, path, [(asking("Hello"), "")])
    assert launched
    worker.close()
