"""Weights of tokens by their names: the largest of each, none of tokens that stand for no word."""

from pathlib import Path

import pytest

from services.frontend.model_info import ModelInfo
from services.frontend.pooling.token_weights import TokenWeights
from services.frontend.tokenizer import Tokenizer
from tests.conftest import ModelDir


@pytest.fixture
def tokenizer(model_dir: ModelDir) -> Tokenizer:
    return Tokenizer.load(ModelInfo.load(Path(model_dir("qwen3"))))


def test_each_token_has_its_largest_weight(tokenizer: Tokenizer) -> None:
    weights = TokenWeights(tokenizer, {})
    found = weights.by_token([5, 6, 5, 7], [0.5, 0.25, 1.5, 0.0], decoded=False)
    assert found == {"5": 1.5, "6": 0.25}


def test_named_tokens_have_none(tokenizer: Tokenizer) -> None:
    named = {"cls_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "not there"}
    start, end = tokenizer.id("<|im_start|>"), tokenizer.id("<|im_end|>")
    assert start is not None
    assert end is not None
    weights = TokenWeights(tokenizer, named)
    assert weights.by_token([start, 5, end], [1.0, 2.0, 3.0], decoded=False) == {"5": 2.0}
    plain = TokenWeights(tokenizer, {"sep_token": "<|im_end|>"})
    assert plain.by_token([end], [3.0], decoded=False) == {str(end): 3.0}


def test_tokens_of_one_text_are_one(tokenizer: Tokenizer) -> None:
    (token,) = tokenizer.encode("a")
    weights = TokenWeights(tokenizer, {})
    assert weights.by_token([token], [0.5], decoded=True) == {"a": 0.5}
    broken = [i for i in range(400) if tokenizer.decode([i], skip_special_tokens=False) == "\ufffd"]
    assert len(broken) > 1
    found = weights.by_token(broken[:2], [0.5, 0.75], decoded=True)
    assert found == {"\ufffd": 0.75}
