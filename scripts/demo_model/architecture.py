"""Shape of the demonstration model and its image processor."""

import torch
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

# Between 24 and 28 image tokens: a square picture of any size becomes exactly 5 x 5 tokens.
PIXELS = {"shortest_edge": 24 * 28**2, "longest_edge": 28 * 28**2}
VISION = {
    "depth": 4,
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_heads": 6,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 56,
    "fullatt_block_indexes": [1, 3],
    "out_hidden_size": 192,
}
TEXT = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    # A short base: neighbouring rows and columns of a 5 x 5 picture must differ in the slow,
    # spatial part of m-RoPE as well.
    "rope_parameters": {"rope_type": "default", "rope_theta": 30.0, "mrope_section": [4, 6, 6]},
}


def build_config(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLConfig:
    """Configuration of the model for a tokenizer's ids."""
    token = tokenizer.convert_tokens_to_ids
    ends = {"eos_token_id": token("<|im_end|>"), "pad_token_id": token("<|endoftext|>")}
    return Qwen2_5_VLConfig(
        text_config={**TEXT, **ends, "bos_token_id": None, "vocab_size": len(tokenizer)},
        vision_config=VISION,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
        **ends,
    )


def build_model(
    tokenizer: PreTrainedTokenizerFast, seed: int
) -> Qwen2_5_VLForConditionalGeneration:
    """A model with fresh fp32 weights."""
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration(build_config(tokenizer))
    model.generation_config = GenerationConfig(
        do_sample=False,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def build_image_processor() -> Qwen2VLImageProcessorPil:
    """Qwen2-VL's image processor with the fixed pixel budget."""
    return Qwen2VLImageProcessorPil(size=dict(PIXELS))
