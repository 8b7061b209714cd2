"""What is read from a model directory."""

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ConfigError
from services.frontend.config import FrontendConfig
from services.frontend.model_info import ModelInfo
from tests.support.frontend_helpers import write_model


def change(model: Path, name: str, **values: Any) -> None:
    path = model / name
    content = json.loads(path.read_text()) if path.exists() else {}
    content.update(values)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model("qwen2_vl", tmp_path / "model")


def test_a_directory_is_read(model: Path) -> None:
    change(
        model, "generation_config.json", temperature=0.1, top_k=3, do_sample=True, pad_token_id=0
    )
    info = ModelInfo.load(model)
    assert (info.name, info.model_type, info.max_model_len) == ("model", "qwen2_vl", 4096)
    assert (
        info.vocab_size
        == json.loads((model / "config.json").read_text())["text_config"]["vocab_size"]
    )
    assert dict(info.generation_defaults) == {"temperature": 0.1, "top_k": 3}
    assert info.special_tokens["eos_token"] == "<|im_end|>"
    assert info.processor is not None and info.processor["patch_size"] == 14
    assert len(info.eos_token_ids) == 2 and info.has_media


def test_generation_defaults_can_be_left_out(model: Path) -> None:
    change(model, "generation_config.json", temperature=0.1)
    info = ModelInfo.load(model, generation_defaults=False)
    assert not info.generation_defaults and len(info.eos_token_ids) == 2


def test_eos_comes_from_the_most_specific_file(model: Path) -> None:
    change(model, "config.json", eos_token_id=5)
    assert len(ModelInfo.load(model).eos_token_ids) == 2
    (model / "generation_config.json").unlink()
    assert ModelInfo.load(model).eos_token_ids == (5,)


def test_the_length_can_be_set(model: Path) -> None:
    assert ModelInfo.load(model, max_model_len=100).max_model_len == 100
    with pytest.raises(ConfigError, match=r"5000.*--allow-long-max-model-len"):
        ModelInfo.load(model, max_model_len=5000)
    longer = ModelInfo.load(model, max_model_len=5000, allow_longer=True)
    assert longer.max_model_len == 5000
    config = json.loads((model / "config.json").read_text())
    text = {**config["text_config"], "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    change(model, "config.json", text_config=text)
    assert ModelInfo.load(model, max_model_len=5000).max_model_len == 5000


def test_a_flat_configuration_is_read(tmp_path: Path) -> None:
    info = ModelInfo.load(write_model("llama", tmp_path))
    assert info.max_model_len == 4096 and not info.has_media and info.processor is None


def test_what_published_gemma_leaves_out_is_known(tmp_path: Path) -> None:
    model = write_model("gemma3", tmp_path)
    change(model, "config.json", text_config={"hidden_size": 64})
    info = ModelInfo.load(model)
    assert (info.vocab_size, info.max_model_len) == (262_208, 131_072)


def test_a_missing_length_is_an_error(tmp_path: Path) -> None:
    model = write_model("llama", tmp_path)
    change(model, "config.json", max_position_embeddings=None)
    change(model, "tokenizer_config.json", model_max_length=None)
    with pytest.raises(ConfigError, match="--max-model-len"):
        ModelInfo.load(model)
    assert ModelInfo.load(model, max_model_len=64).max_model_len == 64


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_a_broken_file_is_named(model: Path, name: str, content: str) -> None:
    (model / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=name):
        ModelInfo.load(model)


def test_a_directory_without_config_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        ModelInfo.load(tmp_path)


def test_the_processor_may_be_nested(model: Path) -> None:
    change(model, "processor_config.json", image_processor={"patch_size": 7})
    info = ModelInfo.load(model, processor_overrides={"merge_size": 4})
    assert info.processor == {"patch_size": 7, "merge_size": 4}


def test_templates_have_an_order(model: Path) -> None:
    assert "<|im_start|>" in ModelInfo.load(model).templates["default"]
    change(model, "tokenizer_config.json", chat_template="from the tokenizer")
    (model / "chat_template.jinja").unlink()
    assert dict(ModelInfo.load(model).templates) == {"default": "from the tokenizer"}
    change(model, "chat_template.json", chat_template="from its own file")
    assert dict(ModelInfo.load(model).templates) == {"default": "from its own file"}
    assert ModelInfo.load(model, chat_template="{{ given }}").templates == {
        "default": "{{ given }}"
    }
    file = model / "mine.jinja"
    file.write_text("mine")
    assert ModelInfo.load(model, chat_template=str(file)).templates == {"default": "mine"}
    with pytest.raises(ConfigError, match="--chat-template"):
        ModelInfo.load(model, chat_template="/no/such/file")


def test_named_templates_are_read(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    both = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    change(model, "tokenizer_config.json", chat_template=both)
    assert ModelInfo.load(model).templates == {"default": "a", "tool_use": "b"}


def test_a_path_in_the_hub_cache_names_the_model(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Qwen--Qwen2-VL-2B" / "snapshots" / "abc123"
    info = ModelInfo.load(write_model("qwen2_vl", snapshot))
    assert (info.name, info.revision) == ("Qwen/Qwen2-VL-2B", "abc123")


def test_revisions_tell_processors_apart(tmp_path: Path) -> None:
    first, second = (write_model("qwen2_vl", tmp_path / name) for name in "ab")
    assert ModelInfo.load(first).revision == ModelInfo.load(second).revision
    change(second, "preprocessor_config.json", patch_size=16)
    assert ModelInfo.load(first).revision != ModelInfo.load(second).revision


def test_wrong_settings_are_refused(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ConfigError, match="not a directory"):
        FrontendConfig(model=tmp_path / "missing")
    with pytest.raises(ConfigError, match="--max-model-len"):
        FrontendConfig(model=model, max_model_len=0)
    assert FrontendConfig(model=model).names == (str(model),)
