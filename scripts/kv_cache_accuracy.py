"""What `--kv-cache-dtype` costs the demonstration model: accuracy and perplexity with each KV cache
beside the unquantized one, and what a token's KV takes, over held-out questions, on the CPU.

    python -m scripts.kv_cache_accuracy --samples 48 --json kv.json

The engine itself answers, in this process: pictures are encoded, prompts computed in chunks,
answers decoded in batches. Perplexity is that of the right answers, by the scores of a prompt.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.common.pictures import KINDS, Question, encode_image, questions
from protocol.types import (
    EncodeItem,
    EncodeRequest,
    GenerateRequest,
    MMItem,
    RequestOutput,
    SamplingParams,
)
from scripts.demo_model.evaluation import MAX_NEW_TOKENS, model_inputs
from services.engine.config import EngineConfig
from services.engine.engine import Engine

MODEL = Path(__file__).parents[1] / "models" / "demo"
PLACEHOLDER, END = "<|image_pad|>", 2
CACHES = tuple((dtype, kv) for dtype in ("float32", "bfloat16") for kv in ("auto", "int8", "fp8"))
BATCH = 32  # requests at once
DEADLINE_S = 600.0  # of a batch

Asked = tuple[GenerateRequest, EncodeRequest]


def measured(dtype: str, kv_cache_dtype: str, samples: int) -> dict[str, Any]:
    """One row: share of right answers, perplexity of the right answers, bytes of a token's KV."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    engine = Engine(
        EngineConfig(
            model_dir=str(MODEL), model="demo", revision="", parts=("language", "vision"),
            dtype=dtype, device="cpu", kv_cache_dtype=kv_cache_dtype, eos_token_ids=(END,),
        ),
        lambda: None,
    )  # fmt: skip
    try:
        held_out = [question for kind in KINDS for question in questions(kind, samples)]
        right = answered(engine, tokenizer, held_out)
        return {
            "weights": dtype,
            "kv_cache_dtype": kv_cache_dtype,
            "accuracy": round(right / len(held_out), 4),
            "perplexity": round(perplexity(engine, tokenizer, held_out), 5),
            "kv_bytes_per_token": engine.ready().kv_bytes_per_token,
            "blocks": engine.ready().num_blocks,
        }
    finally:
        engine.close()


def answered(engine: Engine, tokenizer: Any, held_out: list[Question]) -> int:
    """How many are answered rightly, word for word."""
    greedy = SamplingParams(temperature=0.0, max_tokens=MAX_NEW_TOKENS)
    asked = [asked_of(tokenizer, one, str(i), greedy) for i, one in enumerate(held_out)]
    right = 0
    for batch in batches(asked):
        for name, outputs in run(engine, batch).items():
            ids = [token for output in outputs for token in output.token_ids]
            right += tokenizer.decode(ids, skip_special_tokens=True) == held_out[int(name)].answer
    return right


def perplexity(engine: Engine, tokenizer: Any, held_out: list[Question]) -> float:
    """Of the tokens of right answers, given their questions."""
    scored = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    asked, counts = [], {}
    for number, question in enumerate(held_out):
        generate, encode = asked_of(tokenizer, question, str(number), scored)
        answer = tokenizer(question.answer, add_special_tokens=False)["input_ids"]
        generate.token_ids = [*generate.token_ids, *answer]
        counts[str(number)] = len(answer)
        asked.append((generate, encode))
    loss = 0.0
    for batch in batches(asked):
        for name, outputs in run(engine, batch).items():
            scores = outputs[0].prompt_logprobs
            assert scores is not None
            loss -= sum(score.logprob for score in scores[-counts[name] :])
    return math.exp(loss / sum(counts.values()))


def asked_of(tokenizer: Any, question: Question, name: str, sampling: SamplingParams) -> Asked:
    """A question as the engine takes it."""
    inputs = model_inputs(tokenizer, [question])
    ids = inputs["input_ids"][0].tolist()
    pad = tokenizer.convert_tokens_to_ids(PLACEHOLDER)
    data = [encode_image(image) for image in question.images()]
    grids = inputs["image_grid_thw"].tolist() if data else []
    items, place = [], 0
    for number, grid in enumerate(grids):
        offset, length = ids.index(pad, place), math.prod(grid) // 4
        items.append(MMItem(f"{question.kind}-{name}-{number}", "image", offset, length, (*grid,)))
        place = offset + length
    encode = [
        EncodeItem(item.mm_hash, "image", item.length, item.grid, one)
        for item, one in zip(items, data, strict=True)
    ]
    return GenerateRequest(name, ids, sampling, items), EncodeRequest(name, encode)


def batches(asked: list[Asked]) -> Iterator[list[Asked]]:
    return (asked[start : start + BATCH] for start in range(0, len(asked), BATCH))


def run(engine: Engine, asked: list[Asked]) -> dict[str, list[RequestOutput]]:
    """Outputs of each request, by its name; all run at once."""
    assert engine.generate is not None and engine.encode is not None
    outputs: dict[str, list[RequestOutput]] = {}
    for generate, encode in asked:
        outputs[generate.request_id] = []
        if encode.items:
            engine.encode.add(encode)
        engine.generate.add(generate)
    deadline = time.monotonic() + DEADLINE_S
    waiting = len(asked)
    while waiting:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{waiting} requests did not end within {DEADLINE_S:.0f} s")
        for output in engine.step()[0]:
            if output.error is not None:
                raise RuntimeError(output.error.message)
            outputs[output.request_id].append(output)
            waiting -= output.finish_reason is not None
        time.sleep(min(engine.wait_s, 0.001))
    return outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--samples", type=int, default=48, help="questions of each kind")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    args = parser.parse_args()
    rows = []
    for cache in CACHES:
        rows.append(measured(*cache, args.samples))
        print(rows[-1], flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
