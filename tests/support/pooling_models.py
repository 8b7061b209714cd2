"""Tiny models that answer vectors or scores, and what transformers makes of the same input."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.reference import Messages, Reference, load

YES, NO = 300, 301
_TRANSFORMER = {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}


def embedding_model(
    model: Path, path: Path, *, normalize: bool = True, bare: bool = False, **pooling: bool
) -> Path:
    """A copy of a causal model with Sentence Transformers' files, by which vectors are its last
    token's hidden states. `bare`: its weights are stored as a base model's, without a head."""
    shutil.copytree(model, path)
    add_embedding_files(path, normalize=normalize, **pooling)
    if bare:
        weights = load_file(path / "model.safetensors")
        kept = {name.removeprefix("model."): weight for name, weight in weights.items()
                if not name.startswith("lm_head")}  # fmt: skip
        save_file(kept, path / "model.safetensors", {"format": "pt"})
    return path


def add_embedding_files(path: Path, *, normalize: bool = True, **pooling: bool) -> None:
    """Make vectors what the model in this folder answers."""
    kinds = ["1_Pooling", *(["2_Normalize"] if normalize else [])]
    modules = [
        {"idx": i, "path": kind, "type": f"sentence_transformers.models.{kind[2:]}"}
        for i, kind in enumerate(kinds, 1)
    ]
    (path / "modules.json").write_text(json.dumps([_TRANSFORMER, *modules]))
    modes = {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False, **pooling}
    (path / "1_Pooling").mkdir()
    config = {"word_embedding_dimension": 64, "include_prompt": True, **modes}
    (path / "1_Pooling" / "config.json").write_text(json.dumps(config))


def reranker(model: Path, path: Path, **score: Any) -> Path:
    """A copy of a causal model that scores by the logits of two of its tokens."""
    shutil.copytree(model, path)
    module = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    modules = [_TRANSFORMER, {"idx": 1, "path": "1_LogitScore", "type": module}]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_LogitScore").mkdir()
    config = {"true_token_id": YES, "false_token_id": NO, **score}
    (path / "1_LogitScore" / "config.json").write_text(json.dumps(config))
    return path


def hidden_of(reference: Reference, inputs: dict[str, Any]) -> torch.Tensor:
    """float[hidden]: what the last layer says of the last token."""
    with torch.inference_mode():
        return reference.model.model(**inputs).last_hidden_state[0, -1]  # type: ignore[no-any-return]


def vector_of(model: Path, token_ids: list[int], dimensions: int | None = None) -> list[float]:
    """Of length 1."""
    hidden = hidden_of(load(model), {"input_ids": torch.tensor([token_ids])})
    return _unit(hidden[:dimensions])


def picture_vector_of(model: Path, messages: Messages, **template: Any) -> list[float]:
    """As `vector_of`, of a conversation."""
    reference = load(model)
    return _unit(hidden_of(reference, reference.inputs(messages, **template)))


def score_of(model: Path, token_ids: list[int]) -> float:
    """How likely yes is, of yes and no."""
    with torch.inference_mode():
        logits = load(model).model(input_ids=torch.tensor([token_ids])).logits[0, -1]
    return float(torch.softmax(logits[[YES, NO]].double(), dim=0)[0])


def _unit(hidden: torch.Tensor) -> list[float]:
    return (hidden / hidden.norm()).tolist()  # type: ignore[no-any-return]
