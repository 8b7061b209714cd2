"""A model's files say whether it answers vectors or scores, and how."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from protocol.errors import ConfigError
from protocol.pooling import Pooler, PoolingParams
from tests.support.frontend_helpers import frontend, write_model
from tests.support.pooling_folders import (
    HEAD,
    LAST,
    NORMALIZE,
    ONE,
    POOLING,
    directory,
    encoder,
    pooler,
    refusal,
    texts,
)


def test_the_files_say_that_a_model_embeds(tmp_path: Path) -> None:
    assert pooler(directory(tmp_path / "n", POOLING, NORMALIZE)) == Pooler("embed", 64)
    plain = pooler(directory(tmp_path / "p", POOLING))
    assert plain == Pooler("embed", 64, normalize=False)
    assert pooler(write_model("qwen3", tmp_path / "g")) is None


def test_the_flag_goes_before_the_files(tmp_path: Path) -> None:
    path = directory(tmp_path, POOLING, NORMALIZE)
    assert pooler(path, task="generate") is None
    assert pooler(write_model("llama", tmp_path / "l"), task="embed") == Pooler("embed", 64)


def test_a_newer_file_names_one_mode(tmp_path: Path) -> None:
    assert pooler(directory(tmp_path, POOLING, config={"pooling_mode": "lasttoken"})) is not None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"pooling_mode_mean_tokens": True}, "mean_tokens"),
        ({**LAST, "pooling_mode_cls_token": True}, "lasttoken, cls_token"),
        ({"pooling_mode": "mean"}, "mean"),
        ({}, "none"),
    ],
)
def test_other_pooling_is_refused_by_its_name(config: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{said}: only lasttoken"):
        pooler(directory(tmp_path, POOLING, config=config))


def test_a_layer_behind_the_pooling_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'Dense' after pooling"):
        pooler(directory(tmp_path, POOLING, "sentence_transformers.models.Dense"))


@pytest.mark.parametrize("said", [{"is_causal": False}, {"use_bidirectional_attention": True}])
def test_a_decoder_that_sees_in_both_directions_is_refused(said: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="see those behind them"):
        pooler(directory(tmp_path, POOLING, **said))


def test_the_files_say_that_a_model_scores(tmp_path: Path) -> None:
    kind = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    both = {"true_token_id": 7, "false_token_id": 8}
    found = pooler(directory(tmp_path / "both", kind, config=both))
    assert found == Pooler("score", 1, normalize=False, score_tokens=(7, 8))
    one = {"true_token_id": 7, "false_token_id": None}
    with pytest.raises(ConfigError, match="false_token_id"):
        pooler(directory(tmp_path / "one", kind, config=one))


def test_a_reranker_without_files_needs_the_flag(tmp_path: Path) -> None:
    path = write_model("qwen3", tmp_path)
    with pytest.raises(ConfigError, match="'yes' and 'no'"):
        pooler(path, task="score")
    file = str(path / "tokenizer.json")
    backend = Backend.from_file(file)
    backend.add_tokens(["yes", "no"])
    backend.save(file)
    ids = tuple(backend.token_to_id(word) or 0 for word in ("yes", "no"))
    assert pooler(path, task="score") == Pooler("score", 1, normalize=False, score_tokens=ids)


def test_dimensions_may_be_listed(tmp_path: Path) -> None:
    front = frontend(directory(tmp_path, POOLING, matryoshka_dimensions=[8, 16]))
    assert texts(front, input="Hello", dimensions=16)[0].pooling == PoolingParams("embed", 16)
    assert texts(front, input="Hello", dimensions=64)[0].pooling == PoolingParams("embed", 64)
    assert refusal(front, input="Hello", dimensions=12).param == "dimensions"


CLASSES = {"id2label": {"0": "bad", "1": "fair", "2": "good"}}


def test_an_encoder_embeds_by_the_mean_unless_its_files_say_otherwise(tmp_path: Path) -> None:
    mean = Pooler("embed", 64, encoder=True, pooling="mean")
    assert pooler(encoder(tmp_path / "bare")) == mean
    for name, mode in (("mean_tokens", "mean"), ("cls_token", "cls")):
        path = directory(tmp_path / name, POOLING, config={f"pooling_mode_{name}": True})
        encoder(path)
        found = pooler(path)
        assert found is not None and (found.pooling, found.normalize) == (mode, False)
    path = encoder(directory(tmp_path / "last", POOLING))
    with pytest.raises(ConfigError, match="pooling is lasttoken"):
        pooler(path)


def test_an_encoders_head_scores_or_classifies(tmp_path: Path) -> None:
    labels = ("bad", "fair", "good")
    classes = Pooler("classify", 3, normalize=False, encoder=True, labels=labels,
                     activation="softmax")  # fmt: skip
    assert pooler(encoder(tmp_path / "c", HEAD, **CLASSES)) == classes
    several = encoder(tmp_path / "m", HEAD, **CLASSES, problem_type="multi_label_classification")
    assert pooler(several).activation == "sigmoid"  # type: ignore[union-attr]
    score = Pooler("score", 1, normalize=False, encoder=True, activation="sigmoid")
    assert pooler(encoder(tmp_path / "s", HEAD, **ONE)) == score
    identity = {"activation_fn": "torch.nn.modules.linear.Identity"}
    plain = pooler(encoder(tmp_path / "i", HEAD, **ONE, sentence_transformers=identity))
    assert plain is not None and plain.activation == "identity"
    with pytest.raises(ConfigError, match="3 labels, use classify"):
        pooler(tmp_path / "c", task="score")
    with pytest.raises(ConfigError, match="generates no text"):
        pooler(tmp_path / "c", task="generate")


def test_a_decoder_with_a_head_for_sequences_is_refused_by_name(tmp_path: Path) -> None:
    path = write_model("qwen3", tmp_path, architectures=["Qwen3ForSequenceClassification"])
    with pytest.raises(ConfigError, match="'qwen3' with a head for sequences"):
        pooler(path)
    assert pooler(path, task="generate") is None


def test_an_encoder_takes_no_more_than_it_has_positions(tmp_path: Path) -> None:
    assert frontend(encoder(tmp_path / "b")).info.max_model_len == 512
    roberta = encoder(tmp_path / "r", model_type="roberta", pad_token_id=1)
    assert frontend(roberta).info.max_model_len == 510
    (tmp_path / "b" / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    assert frontend(tmp_path / "b").info.max_model_len == 256
