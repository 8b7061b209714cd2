"""The tiny models are what parity tests take them for: loadable, deterministic and sensitive."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from tests.conftest import ModelDir
from tests.support.conversations import asking, picture
from tests.support.reference import load, reference_generate
from tests.support.tiny_models import FAMILIES, STATEFUL_FAMILY, VISION_FAMILIES, build

QUESTIONS = (
    "Hello",
    "What is in this image?",
    "Tell me a long story about a server that answered questions before they were asked.",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_output_is_varied(family: str, model_dir: ModelDir) -> None:
    outputs = [
        reference_generate(model_dir(family), asking(q), 16, ignore_eos=True) for q in QUESTIONS
    ]
    assert [len(tokens) for tokens in outputs] == [16] * len(QUESTIONS)
    assert all(len(set(tokens)) > 7 for tokens in outputs)
    assert len({tuple(tokens[:4]) for tokens in outputs}) == len(QUESTIONS)


@pytest.mark.parametrize("family", FAMILIES)
def test_output_stops_at_eos(family: str, model_dir: ModelDir) -> None:
    """At each of its ids, of which one is chosen here that comes soon."""
    path = model_dir(family).resolve()
    reference = load(path)
    eos = json.loads((path / "generation_config.json").read_text())["eos_token_id"]
    assert reference.eos == tuple(eos)
    inputs = reference.inputs(asking("Hello"))
    whole = reference.generate(inputs, 8, ignore_eos=True)
    ends = (*eos, whole[3])
    first = next(index for index, token in enumerate(whole) if token in ends)
    assert replace(reference, eos=ends).generate(inputs, 8) == whole[: first + 1]


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_output_depends_on_each_picture(family: str, model_dir: ModelDir) -> None:
    def tokens(first: int, second: int) -> list[int]:
        content = (picture(first, 160, 100), "and", picture(second, 160, 100), "Which?")
        return reference_generate(model_dir(family), asking(*content), 8, ignore_eos=True)

    outputs = [tokens(1, 2), tokens(2, 1), tokens(1, 3), tokens(3, 2)]
    assert len({tuple(output) for output in outputs}) == len(outputs)


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_a_picture_takes_few_tokens(family: str, model_dir: ModelDir) -> None:
    reference = load(model_dir(family).resolve())
    ids = reference.inputs(asking(picture(1), "What is it?"))["input_ids"]
    count = int((ids == reference.config.image_token_id).sum())
    tiled = ("llava_onevision", "smolvlm")  # a base view and a 2 x 2 grid of views
    bound = 88 if family in tiled else 64
    assert 16 <= count <= bound


@pytest.mark.parametrize(
    "family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "gemma3", "gemma4"]
)
def test_token_types_change_the_output(family: str, model_dir: ModelDir) -> None:
    """Positions in three dimensions, or the bidirectional mask, matter to these weights."""
    reference = load(model_dir(family).resolve())
    inputs = reference.inputs(asking(picture(1, 160, 100), "What is it?"))
    without = {key: value for key, value in inputs.items() if "token_type" not in key}
    assert len(without) == len(inputs) - 1
    assert reference.generate(inputs, 8, True) != reference.generate(without, 8, True)


def test_deepstack_changes_the_output(model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = load(model_dir("qwen3_vl").resolve())
    inputs = reference.inputs(asking(picture(1), "What is it?"))
    expected = reference.generate(inputs, 8, True)
    assert len(reference.config.vision_config.deepstack_visual_indexes) == 2
    language_model = reference.model.model.language_model
    monkeypatch.setattr(language_model, "_deepstack_process", lambda hidden, *_: hidden)
    assert reference.generate(inputs, 8, True) != expected


def test_the_sliding_window_changes_the_output(model_dir: ModelDir, tmp_path: Path) -> None:
    path = build("gemma3", tmp_path / "gemma3")
    config = json.loads((path / "config.json").read_text())
    assert set(config["text_config"]["layer_types"]) == {"sliding_attention", "full_attention"}
    config["text_config"]["sliding_window"] = 4096
    (path / "config.json").write_text(json.dumps(config))
    question = asking(QUESTIONS[2])
    wide = reference_generate(path, question, 16, ignore_eos=True)
    assert wide != reference_generate(model_dir("gemma3"), question, 16, ignore_eos=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_media_tokens_are_special_and_ids_agree(family: str, model_dir: ModelDir) -> None:
    reference = load(model_dir(family).resolve())
    tokenizer = reference.tokenizer
    assert reference.config.get_text_config().vocab_size == len(tokenizer)
    assert tokenizer.decode(reference.eos, skip_special_tokens=True) == ""
    if family in VISION_FAMILIES:
        name = tokenizer.convert_ids_to_tokens(reference.config.image_token_id)
        assert tokenizer.encode(name, add_special_tokens=False) == [reference.config.image_token_id]
        assert name in reference.tokenizer.all_special_tokens


@pytest.mark.parametrize("family", ["gemma3", "llama"])
def test_the_prompt_has_one_bos(family: str, model_dir: ModelDir) -> None:
    reference = load(model_dir(family).resolve())
    ids = reference.inputs(asking("Hello"))["input_ids"][0].tolist()
    assert ids.count(reference.tokenizer.bos_token_id) == 1
    assert reference.tokenizer("Hello")["input_ids"][0] == reference.tokenizer.bos_token_id


@pytest.mark.parametrize("family", [*FAMILIES, STATEFUL_FAMILY])
def test_building_is_deterministic_and_complete(
    family: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    first = model_dir(family)
    torch.manual_seed(12345)
    again = build(family, tmp_path / "again")
    other = build(family, tmp_path / "other", seed=1)
    names = {file.name for file in first.iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= names
    assert {"config.json", "generation_config.json", "model.safetensors"} <= names
    assert ("preprocessor_config.json" in names) == (family in VISION_FAMILIES)
    for name in names:
        assert (first / name).read_bytes() == (again / name).read_bytes(), name
    weights = "model.safetensors"
    assert (first / weights).read_bytes() != (other / weights).read_bytes()


def test_the_stateful_model_has_linear_attention(model_dir: ModelDir) -> None:
    config = AutoConfig.from_pretrained(model_dir(STATEFUL_FAMILY))
    assert set(config.layer_types) == {"linear_attention", "full_attention"}
