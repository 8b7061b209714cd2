"""What `--quantization` costs the demonstration model: accuracy and perplexity of each scheme,
beside float32 and bfloat16, on the CPU, over held-out questions.

    python -m scripts.quantization_accuracy --samples 128 --json quantization.json

Weights are quantized by the engine's code and run by transformers, whose tokens are the engine's
(tests/unit/engine/test_quantization.py). Needs the extra `quant`.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from benchmarks.common.pictures import KINDS, questions
from scripts.demo_model.evaluation import accuracy, model_inputs
from services.engine.model.quantization import quantize, stored_bytes

MODEL = Path(__file__).parents[1] / "models" / "demo"
SCHEMES = (
    ("float32", torch.float32, ""),
    ("bfloat16", torch.bfloat16, ""),
    ("bfloat16, int8", torch.bfloat16, "int8"),
    ("bfloat16, fp8", torch.bfloat16, "fp8"),
)


def measured(name: str, dtype: torch.dtype, scheme: str, samples: int) -> dict[str, Any]:
    """One row: share of right answers, perplexity of the right answers, bytes of layers."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(MODEL, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    language = model.model.language_model
    if scheme:
        quantize(language, scheme, dtype, "cpu")
    scores = accuracy(model, tokenizer, samples)
    return {
        "name": name,
        "accuracy": round(sum(scores.values()) / len(scores), 4),
        "perplexity": round(perplexity(model, tokenizer, samples), 4),
        "layer_bytes": sum(stored_bytes(p) for p in language.layers.parameters()),
    }


@torch.inference_mode()
def perplexity(model: Any, tokenizer: Any, samples: int) -> float:
    """Of the tokens of right answers, given their questions."""
    loss, tokens = 0.0, 0
    for kind in KINDS:
        for question in questions(kind, samples):
            inputs = model_inputs(tokenizer, [question])
            answer = tokenizer(question.answer, add_special_tokens=False, return_tensors="pt")
            ids = torch.cat([inputs["input_ids"], answer["input_ids"]], 1)
            extended = {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
            if (types := inputs.get("mm_token_type_ids")) is not None:
                none = torch.zeros_like(answer["input_ids"])
                extended["mm_token_type_ids"] = torch.cat([types, none], 1)
            count = answer["input_ids"].shape[1]
            logits = model(**extended).logits[0, -count - 1 : -1].float()
            losses = torch.nn.functional.cross_entropy(logits, ids[0, -count:], reduction="sum")
            loss, tokens = loss + float(losses), tokens + count
    return math.exp(loss / tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--samples", type=int, default=128, help="questions of each kind")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    args = parser.parse_args()
    rows = [measured(*scheme, args.samples) for scheme in SCHEMES]
    for row in rows:
        print(row)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
