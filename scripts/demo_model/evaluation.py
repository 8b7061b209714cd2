"""Held-out accuracy through `generate()`: greedy, fp32, pictures through the image processor."""

from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration

from benchmarks.common.pictures import KINDS, Question, questions
from scripts.demo_model.architecture import build_image_processor

MAX_NEW_TOKENS = 48


def accuracy(
    model: Qwen2_5_VLForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    samples: int,
    batch_size: int = 64,
) -> dict[str, float]:
    """Share of exactly right answers by kind, over `samples` held-out questions each."""
    model.eval()
    result = {}
    for kind in KINDS:
        asked = list(questions(kind, samples))
        given = [
            answer
            for start in range(0, samples, batch_size)
            for answer in answers(model, tokenizer, asked[start : start + batch_size])
        ]
        right = [a == question.answer for a, question in zip(given, asked, strict=True)]
        result[kind] = round(sum(right) / samples, 4)
        print(f"{kind:12} {result[kind]:.3f}", flush=True)
    return result


@torch.inference_mode()
def answers(
    model: Qwen2_5_VLForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    asked: list[Question],
) -> list[str]:
    """The model's answers to a batch of questions that all have pictures or all have none."""
    inputs = model_inputs(tokenizer, asked)
    inputs = {name: value.to(model.device) for name, value in inputs.items()}
    output = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    new_tokens = output[:, inputs["input_ids"].shape[1] :]
    decoded: list[str] = tokenizer.batch_decode(new_tokens, skip_special_tokens=True)
    return decoded


def model_inputs(tokenizer: PreTrainedTokenizerFast, asked: list[Question]) -> dict[str, Any]:
    """Inputs of the model for a batch of questions, padded on the left."""
    processor = build_image_processor()
    images = [image for question in asked for image in question.images()]
    seen = dict(processor(images, return_tensors="pt")) if images else {}
    counts = iter((seen["image_grid_thw"].prod(-1) // 4).tolist()) if images else iter(())
    texts = []
    for question in asked:
        text = tokenizer.apply_chat_template(
            question.messages(), tokenize=False, add_generation_prompt=True
        )
        first, *rest = text.split("<|image_pad|>")
        texts.append(first + "".join("<|image_pad|>" * next(counts) + part for part in rest))
    tokens = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
    is_image = tokens.input_ids == tokenizer.convert_tokens_to_ids("<|image_pad|>")
    return {
        "input_ids": tokens.input_ids,
        "attention_mask": tokens.attention_mask,
        "mm_token_type_ids": is_image.int(),
        **seen,
    }
