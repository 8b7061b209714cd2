"""What a model directory says of a pooler: files of Sentence Transformers, its heads, or --task.

A directory with `modules.json` lists modules that run one after the other: the transformer, then
`Pooling` and `Normalize` of an embedding model, or `LogitScore` of a reranker. Published rerankers
of Qwen3's form have no such file: --task score says what they are. Encoders such as BERT generate
no text in any case; those with a head for one label score pairs, with more they classify.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from protocol.errors import ConfigError
from protocol.pooling import Form, Pooler
from services.frontend.model_info import ModelInfo
from services.frontend.tokenizer import Tokenizer

ENCODERS = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "modernbert"})
"""Model types whose tokens see one another in both directions."""
_FROM_PADDING = frozenset({"roberta", "xlm-roberta", "camembert"})  # positions begin behind its id
_HEADS: Mapping[str, Form] = MappingProxyType(  # files beside an encoder's weights
    {"sparse_linear.pt": "token_weights", "colbert_linear.pt": "token_vectors"}
)
_MODES = "pooling_mode_"
_YES, _NO = "yes", "no"
_IDENTITY, _SIGMOID = "Identity", "Sigmoid"
Json = dict[str, Any]
Kind = Literal["last", "cls", "mean"]


@dataclass(frozen=True)
class _Module:
    """One line of modules.json: the last part of its class's name, and its own configuration."""

    name: str
    config: Json


def with_pooler(info: ModelInfo, tokenizer: Tokenizer, task: str) -> ModelInfo:
    """`info` with its model's pooler, if there is one; `ConfigError` names what is not served."""
    pooler = _pooler(info, tokenizer, task)
    if pooler is None:
        return info
    return replace(info, pooler=pooler, max_model_len=_longest(info))


def _pooler(info: ModelInfo, tokenizer: Tokenizer, task: str) -> Pooler | None:
    modules = {module.name: module.config for module in _modules(info.path)}
    encodes = info.model_type in ENCODERS
    if task == "auto":
        if _headed(info) and not encodes:
            raise ConfigError(
                f"--model: a model of type '{info.model_type}' with a head for sequences is not"
                " served (--task generate or embed runs it without)"
            )
        task = _task_of_encoder(info) if encodes else _task_of(modules)
    if task == "generate":
        if encodes:
            raise ConfigError(f"--task: a model of type '{info.model_type}' generates no text")
        return None
    if task == "embed":
        return _embedding(info, modules, encodes=encodes)
    if encodes:
        return _head(info, task)
    if task == "score":
        return _score(tokenizer, modules)
    raise ConfigError(f"--task {task}: a model of type '{info.model_type}' does not have it")


def _task_of(modules: Mapping[str, Json]) -> str:
    if "LogitScore" in modules:
        return "score"
    return "embed" if "Pooling" in modules else "generate"


def _headed(info: ModelInfo) -> bool:
    names = [str(name) for name in info.config.get("architectures") or ()]
    return any(name.endswith("ForSequenceClassification") for name in names)


def _task_of_encoder(info: ModelInfo) -> str:
    if not _headed(info):
        return "embed"
    return "score" if len(_labels(info)) == 1 else "classify"


def _embedding(info: ModelInfo, modules: Mapping[str, Json], *, encodes: bool) -> Pooler:
    others = sorted(set(modules) - {"Transformer", "Pooling", "Normalize"})
    if others:
        raise ConfigError(f"--model: modules.json: '{others[0]}' after pooling is not supported")
    if not encodes and _sees_all(info.config.get("text_config") or info.config):
        raise ConfigError("--model: its tokens see those behind them, which is not supported")
    return Pooler(
        "embed",
        _width(info),
        normalize=not modules or "Normalize" in modules,
        dimensions=tuple(info.config.get("matryoshka_dimensions") or ()),
        encoder=encodes,
        pooling=_mode(modules.get("Pooling"), encodes=encodes),
        forms=_forms(info.path) if encodes else (),
    )


def _forms(path: Path) -> tuple[Form, ...]:
    return tuple(form for file, form in _HEADS.items() if (path / file).is_file())


def _sees_all(config: Mapping[str, Any]) -> bool:
    """Whether a decoder was made to attend in both directions, as those of gte-Qwen2 were."""
    return config.get("is_causal") is False or bool(config.get("use_bidirectional_attention"))


def _mode(pooling: Json | None, *, encodes: bool) -> Kind:
    """Of a causal model the last token alone has seen the whole input."""
    served: dict[str, Kind] = {"lasttoken": "last"}
    if encodes:
        served = {"mean_tokens": "mean", "mean": "mean", "cls_token": "cls", "cls": "cls"}
    if pooling is None:
        return "mean" if encodes else "last"
    modes = [
        name.removeprefix(_MODES)
        for name, on in pooling.items()
        if name.startswith(_MODES) and on is True
    ]
    if isinstance(newer := pooling.get("pooling_mode"), str):
        modes = [newer]
    if len(modes) != 1 or modes[0] not in served:
        said = ", ".join(modes) or "none"
        raise ConfigError(f"--model: its pooling is {said}: only {' or '.join(served)} is served")
    return served[modes[0]]


def _width(info: ModelInfo) -> int:
    text = info.config.get("text_config") or info.config
    width = text.get("hidden_size", text.get("dim"))
    if not isinstance(width, int) or width < 1:
        raise ConfigError(f"{info.path / 'config.json'} has no hidden_size")
    return width


def _score(tokenizer: Tokenizer, modules: Mapping[str, Json]) -> Pooler:
    said = modules.get("LogitScore")
    if said is None:
        tokens = [tokenizer.id(_YES), tokenizer.id(_NO)]
        problem = f"--task score: the tokenizer has no tokens '{_YES}' and '{_NO}'"
    else:
        tokens = [said.get("true_token_id"), said.get("false_token_id")]
        problem = "--model: LogitScore without true_token_id and false_token_id is not served"
    yes, no = tokens
    if not isinstance(yes, int) or not isinstance(no, int):
        raise ConfigError(problem)
    return Pooler("score", 1, normalize=False, score_tokens=(yes, no))


def _labels(info: ModelInfo) -> tuple[str, ...]:
    """Names of the classes that a head tells apart; transformers assumes two."""
    named = info.config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    # Keys of JSON are texts, among which '10' comes before '2'.
    return tuple(str(named[key]) for key in sorted(named, key=int))


def _head(info: ModelInfo, task: str) -> Pooler:
    """Of an encoder with a head for sequences."""
    labels = _labels(info)
    if task == "score":
        if len(labels) != 1:
            raise ConfigError(f"--task score: the model has {len(labels)} labels, use classify")
        plain = _activation(info).endswith(_IDENTITY)
        shape: Literal["identity", "sigmoid"] = "identity" if plain else "sigmoid"
        return Pooler("score", 1, normalize=False, encoder=True, activation=shape)
    # Independent probabilities: softmax over one class would always say 1.
    each = len(labels) == 1 or info.config.get("problem_type") == "multi_label_classification"
    return Pooler(
        "classify",
        len(labels),
        normalize=False,
        encoder=True,
        labels=labels,
        activation="sigmoid" if each else "softmax",
    )


def _activation(info: ModelInfo) -> str:
    """Class that a cross-encoder's files name: scores are from 0 to 1 unless they say otherwise."""
    newer = info.config.get("sentence_transformers") or {}
    named = newer.get("activation_fn") if isinstance(newer, dict) else None
    return str(named or info.config.get("sbert_ce_default_activation_function") or _SIGMOID)


def _longest(info: ModelInfo) -> int:
    """Tokens of an input: positions that there are, and what Sentence Transformers cuts at."""
    bounds = [info.max_model_len]
    told = _read(info.path / "sentence_bert_config.json")
    if isinstance(told, dict) and isinstance(told.get("max_seq_length"), int):
        bounds.append(told["max_seq_length"])
    positions = info.config.get("max_position_embeddings")
    if info.model_type in _FROM_PADDING and isinstance(positions, int):
        # Positions are numbered from the padding id + 1 on: the table holds that many fewer.
        bounds.append(positions - int(info.config.get("pad_token_id", 1)) - 1)
    return min(bounds)


def _modules(path: Path) -> list[_Module]:
    listed = _read(path / "modules.json")
    if not isinstance(listed, list):
        return []
    found = []
    for entry in listed:
        kind, folder = str(entry.get("type", "")), path / str(entry.get("path", ""))
        config = _read(folder / "config.json") if entry.get("path") else {}
        found.append(_Module(kind.rpartition(".")[2], config if isinstance(config, dict) else {}))
    return found


def _read(path: Path) -> Any:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
