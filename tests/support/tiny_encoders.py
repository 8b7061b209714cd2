"""Tiny models that read texts in both directions, with random weights, and what they answer."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, AutoModelForSequenceClassification

from tests.support import tiny_text

KINDS = {
    "bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert",
    "distilbert": "DistilBert", "modernbert": "ModernBert",
}  # fmt: skip
BEGIN, END = "<|im_start|>", "<|im_end|>"
LABELS = ("bad", "fair", "good")


def build_encoder(
    path: Path, kind: str = "bert", labels: Sequence[str] = (), pooling: str = "mean_tokens"
) -> Path:
    """A directory; with `labels` its model has a head for sequences, else files that pool."""
    path.mkdir(parents=True)
    tokenizer = tiny_text.write(tiny_text.QWEN3_VL, path)
    _mark_pairs(path / "tokenizer.json", tokenizer)
    config = getattr(transformers, f"{KINDS[kind]}Config")(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        hidden_dim=96,  # DistilBERT's name for it
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=130,
        type_vocab_size=1 if "roberta" in kind or kind == "camembert" else 2,
        pad_token_id=1,
        bos_token_id=None,
        eos_token_id=None,
        cls_token_id=None,
        sep_token_id=None,
        num_labels=len(labels) or 2,
    )
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
    cls = AutoModelForSequenceClassification if labels else AutoModel
    torch.manual_seed(7)
    model = cls.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(6.0 if "embed" not in name else 3.0)
    model.save_pretrained(path)
    if not labels:
        _pool(path, pooling)
    return path


def add_token_heads(path: Path) -> Path:
    """Linear layers beside a model of vectors, as BGE-M3 has them, and names of the tokens that
    stand for no word."""
    torch.manual_seed(11)
    for name, rows in (("sparse", 1), ("colbert", 64)):
        torch.save(torch.nn.Linear(64, rows).state_dict(), path / f"{name}_linear.pt")
    names = {"cls_token": BEGIN, "eos_token": END, "sep_token": END}
    file = path / "tokenizer_config.json"
    config = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**config, **names}))
    return path


def token_weights(path: Path, token_ids: Sequence[int]) -> list[float]:
    """Of each token, as BGE-M3's own code weighs it on transformers' hidden states."""
    return torch.relu(_head(path, "sparse", 1)(_hidden(path, token_ids))).squeeze(-1).tolist()


def token_vectors(path: Path, token_ids: Sequence[int]) -> list[list[float]]:
    """Of each token but the first, of length 1."""
    made = _head(path, "colbert", 64)(_hidden(path, token_ids)[1:])
    return (made / made.norm(dim=-1, keepdim=True)).tolist()  # type: ignore[no-any-return]


def _head(path: Path, name: str, rows: int) -> torch.nn.Linear:
    head = torch.nn.Linear(64, rows).requires_grad_(False)
    head.load_state_dict(torch.load(path / f"{name}_linear.pt", weights_only=True))
    return head


def _hidden(path: Path, token_ids: Sequence[int]) -> torch.Tensor:
    model = AutoModel.from_pretrained(path).float().eval()
    with torch.inference_mode():
        hidden = model(input_ids=torch.tensor([list(token_ids)])).last_hidden_state[0]
    return hidden.clone()  # type: ignore[no-any-return]


def _mark_pairs(file: Path, tokenizer: Tokenizer) -> None:
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BEGIN} $A {END}",
        pair=f"{BEGIN} $A {END} $B:1 {END}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (BEGIN, END)],
    )
    tokenizer.save(str(file))


def _pool(path: Path, pooling: str) -> None:
    kinds = ("models.Transformer", "models.Pooling", "models.Normalize")
    modules = [
        {"idx": i, "path": "1_Pooling" if i == 1 else "", "type": f"sentence_transformers.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))


def encoded_vector(path: Path, token_ids: list[int], pooling: str = "mean") -> list[float]:
    """Of length 1, as transformers computes it for one text."""
    model = AutoModel.from_pretrained(path).float().eval()
    with torch.inference_mode():
        hidden = model(input_ids=torch.tensor([token_ids])).last_hidden_state[0]
    vector = hidden.mean(0) if pooling == "mean" else hidden[0]
    return (vector / vector.norm()).tolist()  # type: ignore[no-any-return]


def head_logits(path: Path, token_ids: list[int], second: int = 0) -> torch.Tensor:
    """float[labels], as transformers computes them for one text or pair."""
    model = AutoModelForSequenceClassification.from_pretrained(path).float().eval()
    inputs: dict[str, Any] = {"input_ids": torch.tensor([token_ids])}
    if second:
        types = [int(place >= second) for place in range(len(token_ids))]
        inputs["token_type_ids"] = torch.tensor([types])
    with torch.inference_mode():
        return model(**inputs).logits[0]  # type: ignore[no-any-return]
