"""What transformers' own processor and `generate()` make of a conversation with sound."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoProcessor, GenerationConfig, Qwen2AudioForConditionalGeneration

from tests.support.audio_files import RATE, AudioFile
from tests.support.reference import Inputs, Messages


@lru_cache(maxsize=4)
def _load(model_dir: Path) -> tuple[Any, Any]:
    """(processor, model in float32)."""
    model = Qwen2AudioForConditionalGeneration.from_pretrained(model_dir, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    return AutoProcessor.from_pretrained(model_dir), model.eval()


def audio_inputs(model_dir: Path, messages: Messages) -> Inputs:
    """`generate()`'s arguments for one conversation."""
    processor, _ = _load(model_dir.resolve())
    prompt = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    heard = [part["audio"].samples for part in _parts(messages)]
    given = {"audio": heard, "sampling_rate": RATE} if heard else {}
    return dict(processor(text=[prompt], return_tensors="pt", **given))


def generate_from_audio(model_dir: Path, messages: Messages, tokens: int) -> list[int]:
    """New token ids, greedy, past any end of sequence."""
    processor, model = _load(model_dir.resolve())
    inputs = audio_inputs(model_dir, messages)
    config = GenerationConfig(
        do_sample=False, max_new_tokens=tokens, pad_token_id=processor.tokenizer.pad_token_id
    )
    with torch.inference_mode():
        output = model.generate(**inputs, generation_config=config)
    ids: list[int] = output[0, inputs["input_ids"].shape[1] :].tolist()
    return ids


def _parts(messages: Messages) -> list[dict[str, Any]]:
    parts = [part for m in messages if isinstance(m["content"], list) for part in m["content"]]
    return [part for part in parts if isinstance(part.get("audio"), AudioFile)]
