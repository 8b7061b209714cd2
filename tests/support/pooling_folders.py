"""Folders of models that answer vectors or scores, and what the frontend makes of their inputs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from protocol.errors import InvalidRequest
from protocol.pooling import Pooler
from protocol.pooling_requests import Pair, RerankRequest, decode_embedding, inputs_of
from protocol.types import GenerateRequest
from services.frontend.render import Frontend
from tests.support.frontend_helpers import frontend, write_model

POOLING = "sentence_transformers.models.Pooling"
NORMALIZE = "sentence_transformers.models.Normalize"
LAST = {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
HEAD = "BertForSequenceClassification"
ONE = {"id2label": {"0": "LABEL_0"}}


def directory(path: Path, *types: str, config: Any = LAST, **model: Any) -> Path:
    """A Qwen3 directory whose modules.json lists these after the transformer."""
    write_model("qwen3", path, **model)
    modules = [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}]
    for index, kind in enumerate(types, 1):
        folder = f"{index}_{kind.rpartition('.')[2]}"
        modules.append({"idx": index, "path": folder, "type": kind})
        (path / folder).mkdir()
        (path / folder / "config.json").write_text(json.dumps(config if index == 1 else {}))
    (path / "modules.json").write_text(json.dumps(modules))
    return path


def encoder(path: Path, architecture: str = "BertModel", **config: Any) -> Path:
    """A directory of a BERT of 512 positions whose tokenizer marks a pair's second text."""
    write_model("qwen3", path)
    values = {"model_type": "bert", "architectures": [architecture], "hidden_size": 64,
              "max_position_embeddings": 512, "vocab_size": 700, **config}  # fmt: skip
    (path / "config.json").write_text(json.dumps(values))
    file = str(path / "tokenizer.json")
    backend = Backend.from_file(file)
    begin, end = "<|im_start|>", "<|im_end|>"
    backend.post_processor = TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B:1 {end}:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in (begin, end)],
    )
    backend.save(file)
    return path


def pooler(path: Path, **options: Any) -> Pooler | None:
    return frontend(path, **options).info.pooler


def texts(front: Frontend, **fields: Any) -> list[GenerateRequest]:
    request, _ = decode_embedding(json.dumps({"model": "tiny", **fields}).encode())
    inputs = inputs_of(request)
    return asyncio.run(front.pooling.texts(request, front.pooling.params(request), inputs, "r"))


def refusal(front: Frontend, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        texts(front, **fields)
    return caught.value


def pairs(front: Frontend, *given: tuple[str, str], **fields: Any) -> list[GenerateRequest]:
    request = RerankRequest(query="", documents=[], **fields)
    named = [Pair(*pair, "query", f"documents[{index}]") for index, pair in enumerate(given)]
    return asyncio.run(front.pooling.pairs(request, named, "r"))


def scorer(path: Path, **options: Any) -> Frontend:
    kind = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    config = {"true_token_id": 7, "false_token_id": 8}
    return frontend(directory(path, kind, config=config), **options)
