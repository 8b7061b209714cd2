"""Token ids are those of transformers, and what is known of tokens."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers
from transformers import AutoTokenizer

from protocol.errors import ConfigError
from services.frontend.model_info import ModelInfo
from services.frontend.tokenizer import Tokenizer
from tests.support.frontend_helpers import write_model
from tests.support.tiny_configs import SPECS
from tests.support.tokenizers import byte_tokenizer, load

TEXTS = [
    "Hello, how are you today?",
    "<|im_start|>user\nWhat<image> is <b>this</b><|im_end|>\n <think>\n\n</think>",
    "你好，世界 🙂🎉 Übergröße\u0301 \x00 \t\r\n  ",
    "",
    "<start_of_turn>user\n\n\n<start_of_image><end_of_turn>",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.mark.parametrize("family", [name for name in SPECS if name != "qwen3_next"])
def test_ids_are_those_of_transformers(family: str, root: Path) -> None:
    ours, theirs = load(family, root), AutoTokenizer.from_pretrained(root / family)
    for text in TEXTS:
        for special in (False, True):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == theirs.encode(text, add_special_tokens=special)
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.encode_with_offsets(text).ids == ours.encode(text)


def test_tokens_only_the_configuration_knows_are_added_as_transformers_does(root: Path) -> None:
    model = write_model("llama", root / "more")
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["additional_special_tokens"] = ["<extra>", "<|eot_id|>"]
    config["mask_token"] = {"__type": "AddedToken", "content": "<mask>", "lstrip": True}
    path.write_text(json.dumps(config))
    ours, theirs = Tokenizer.load(ModelInfo.load(model)), AutoTokenizer.from_pretrained(model)
    assert ours.encode("a <mask><extra>b") == theirs.encode(
        "a <mask><extra>b", add_special_tokens=False
    )
    assert {"<extra>", "<mask>", "<|eot_id|>"} <= ours.special


def test_listed_added_tokens_are_taken_as_listed(root: Path) -> None:
    model = write_model("llama", root / "listed")
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text())
    size = load("llama", root).size
    token = {"content": "<tool>", "lstrip": False, "normalized": False, "rstrip": False}
    config["added_tokens_decoder"] = {str(size): {**token, "single_word": False, "special": False}}
    path.write_text(json.dumps(config))
    ours, theirs = Tokenizer.load(ModelInfo.load(model)), AutoTokenizer.from_pretrained(model)
    assert ours.encode("a<tool>") == theirs.encode("a<tool>", add_special_tokens=False)
    assert ours.id("<tool>") == size and "<tool>" not in ours.special


def test_truncation_and_padding_of_the_file_do_not_apply(root: Path) -> None:
    model = write_model("llama", root / "cut")
    backend = Backend.from_file(str(model / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(model / "tokenizer.json"))
    tokenizer = Tokenizer.load(ModelInfo.load(model))
    assert len(tokenizer.encode("one two three four five six")) not in (4, 64)


def test_a_missing_or_broken_file_is_a_configuration_error(root: Path) -> None:
    model = write_model("llama", root / "broken")
    for action in (lambda p: p.write_text("{}"), Path.unlink):
        action(model / "tokenizer.json")
        with pytest.raises(ConfigError, match=r"tokenizer\.json"):
            Tokenizer.load(ModelInfo.load(model))


@pytest.mark.parametrize("text", ["Hello", "é", "你好 🙂", " a b\n"])
def test_token_bytes_make_up_the_text(text: str, root: Path) -> None:
    for tokenizer in (load("qwen3", root), byte_tokenizer()):
        spelled = b"".join(map(tokenizer.token_bytes, tokenizer.encode(text)))
        assert spelled.decode() == text
    assert load("qwen3", root).token_bytes(99_999) == b""


def test_bytes_of_added_tokens_are_their_text(root: Path) -> None:
    tokenizer = load("qwen3", root)
    assert tokenizer.token_bytes(tokenizer.id("<|im_end|>") or -1) == b"<|im_end|>"


def test_the_digest_names_the_vocabulary_alone(root: Path) -> None:
    text = load("qwen2_5_vl", root).serialized()
    same, other = Backend.from_str(text), Backend.from_str(text)
    same.normalizer = normalizers.NFC()
    other.add_tokens(["<|another|>"])
    digest = Tokenizer(Backend.from_str(text)).digest
    assert Tokenizer(same).digest == digest != Tokenizer(other).digest
