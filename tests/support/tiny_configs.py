"""Configurations of the tiny model families, as the published checkpoints write them.

Hidden 64 or 128, two to four layers, head_dim 16 or 32, fewer KV heads than heads. A picture of
224x224 becomes 16 to 88 tokens. Tied and untied embeddings are both present.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from tests.support import tiny_text
from tests.support.tiny_processors import (
    PINPOINTS,
    audio_files,
    gemma4_files,
    gemma_files,
    internvl_files,
    llava15_files,
    llava_files,
    mistral3_files,
    qwen_files,
    smolvlm_files,
)
from tests.support.tiny_text import TextSide

MAX_POSITIONS = 4096

Json = dict[str, Any]
Ids = Callable[[str], int]


@dataclass(frozen=True)
class Family:
    """Everything a directory is made of; `config` and `files` get the tokenizer's id lookup."""

    text: TextSide
    model_class: str
    config: Callable[[Ids], Json]
    files: Callable[[], dict[str, Json]] = dict
    embedding_std: float = 0.3
    last_norm: float = 1.0  # scale of the norm before a tied head: larger spreads the logits


def _text(hidden: int, heads: int, kv_heads: int, layers: int, **more: Any) -> Json:
    return {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-6,
        **more,
    }


def _rope(**more: Any) -> Json:
    return {"rope_type": "default", "rope_theta": 10000.0, **more}


def _qwen_media(ids: Ids) -> Json:
    return {
        "image_token_id": ids("<|image_pad|>"),
        "video_token_id": ids("<|video_pad|>"),
        "vision_start_token_id": ids("<|vision_start|>"),
        "vision_end_token_id": ids("<|vision_end|>"),
    }


def _qwen2_vl(ids: Ids) -> Json:
    rope = _rope(mrope_section=[2, 3, 3])
    return {
        "text_config": _text(64, 4, 2, 2, rope_parameters=rope),
        "vision_config": {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 2},
        "tie_word_embeddings": False,
        **_qwen_media(ids),
    }


def _qwen2_5_vl(ids: Ids) -> Json:
    rope = _rope(mrope_section=[4, 6, 6])
    vision = {
        "depth": 3,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 2,
        "out_hidden_size": 128,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    }
    return {
        "text_config": _text(128, 4, 2, 2, rope_parameters=rope),
        "vision_config": vision,
        "tie_word_embeddings": True,
        **_qwen_media(ids),
    }


def _qwen3_vl(ids: Ids) -> Json:
    rope = _rope(mrope_section=[6, 5, 5], mrope_interleaved=True)
    vision = {
        "depth": 4,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 2],
    }
    return {
        "text_config": _text(64, 4, 2, 4, head_dim=32, rope_parameters=rope),
        "vision_config": vision,
        "tie_word_embeddings": True,
        **_qwen_media(ids),
    }


def _qwen3_vl_moe(ids: Ids) -> Json:
    config = _qwen3_vl(ids)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    # A layer without experts between layers with them.
    return {**config, "text_config": {**config["text_config"], **experts, "mlp_only_layers": [1]}}


def _siglip(image_size: int, patch_size: int, layers: int) -> Json:
    return {
        "model_type": "siglip_vision_model",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "image_size": image_size,
        "patch_size": patch_size,
        "vision_use_head": False,
    }


def _llava_onevision(ids: Ids) -> Json:
    return {
        "text_config": {"model_type": "qwen2", **_text(64, 4, 2, 2, rope_parameters=_rope())},
        "vision_config": _siglip(image_size=28, patch_size=7, layers=2),
        "image_token_index": ids("<image>"),
        "video_token_index": ids("<video>"),
        "image_grid_pinpoints": PINPOINTS,
        "vision_feature_layer": -1,
        "vision_aspect_ratio": "anyres_max_4",
        "tie_word_embeddings": False,
    }


def _llava(ids: Ids) -> Json:
    vision = {**_siglip(image_size=28, patch_size=7, layers=2), "projection_dim": 64}
    vision.pop("vision_use_head")
    return {
        "text_config": {"model_type": "llama", **_text(64, 4, 2, 2, rope_parameters=_rope())},
        "vision_config": {**vision, "model_type": "clip_vision_model"},
        "image_token_index": ids("<image>"),
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "tie_word_embeddings": False,
    }


def _internvl(ids: Ids) -> Json:
    vision = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": [56, 56],
        "patch_size": [7, 7],
    }
    return {
        "text_config": {"model_type": "qwen2", **_text(64, 4, 2, 2, rope_parameters=_rope())},
        "vision_config": vision,
        "image_token_id": ids("<IMG_CONTEXT>"),
        "image_seq_length": 16,
        "downsample_ratio": 0.5,
        "tie_word_embeddings": True,
    }


def _mistral3(ids: Ids) -> Json:
    vision = {
        "model_type": "pixtral",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 112,
        "patch_size": 7,
    }
    text = _text(64, 4, 2, 2, head_dim=32, rope_parameters=_rope())
    return {
        "text_config": {"model_type": "mistral", **text, "sliding_window": None},
        "vision_config": vision,
        "image_token_index": ids("[IMG]"),
        "spatial_merge_size": 2,
        "vision_feature_layer": -1,
        "tie_word_embeddings": False,
    }


def _smolvlm(ids: Ids) -> Json:
    vision = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 7,
    }
    return {
        "text_config": {"model_type": "llama", **_text(64, 4, 2, 2, rope_parameters=_rope())},
        "vision_config": vision,
        "image_token_id": ids("<image>"),
        "scale_factor": 2,
        "tie_word_embeddings": False,
    }


def _gemma3(ids: Ids) -> Json:
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    text = _text(64, 4, 2, 3, head_dim=32, query_pre_attn_scalar=24, sliding_window=32)
    return {
        "text_config": {**text, "layer_types": layers},
        "vision_config": _siglip(image_size=56, patch_size=7, layers=2),
        "mm_tokens_per_image": 16,
        "boi_token_index": ids("<start_of_image>"),
        "eoi_token_index": ids("<end_of_image>"),
        "image_token_index": ids("<image_soft_token>"),
        "tie_word_embeddings": True,
    }


def _gemma4(ids: Ids) -> Json:
    """As the larger ones: keys are values in full layers, and no layer has inputs of its own."""
    vision = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "patch_size": 4,
        "pooling_kernel_size": 3,
        "position_embedding_size": 256,
        "standardize": True,
    }
    own = {
        "head_dim": 32,
        "global_head_dim": 64,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "sliding_window": 32,
        "layer_types": ["sliding_attention", "full_attention"],
        "hidden_size_per_layer_input": 0,
        "use_bidirectional_attention": "vision",
        "final_logit_softcapping": 30.0,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 48,
    }
    return {
        "text_config": {**_text(64, 4, 2, 2), **own},
        "vision_config": vision,
        "audio_config": None,
        "boi_token_id": ids("<|image>"),
        "eoi_token_id": ids("<image|>"),
        "image_token_id": ids("<|image|>"),
        "video_token_id": ids("<|video|>"),
        "audio_token_id": ids("<|audio|>"),
        "tie_word_embeddings": True,
    }


def _qwen2_audio(ids: Ids) -> Json:
    audio = {
        "model_type": "qwen2_audio_encoder",
        "num_mel_bins": 16,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 96,
        "d_model": 64,
        "max_source_positions": 100,
    }
    return {
        "text_config": {"model_type": "qwen2", **_text(128, 4, 2, 2, rope_parameters=_rope())},
        "audio_config": audio,
        "audio_token_index": ids("<|AUDIO|>"),
        "tie_word_embeddings": False,
    }


def _llama(ids: Ids) -> Json:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    return {**_text(64, 4, 1, 2, rope_parameters=rope), "tie_word_embeddings": False}


def _qwen3(ids: Ids) -> Json:
    return {
        **_text(64, 4, 2, 2, head_dim=32, rope_parameters=_rope()),
        "tie_word_embeddings": True,
    }


def _qwen3_next(ids: Ids) -> Json:
    linear = {
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    }
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    }
    layer_types = ["linear_attention", "full_attention"]
    text = _text(64, 4, 2, 2, head_dim=16, layer_types=layer_types)
    return {**text, **linear, **experts, "tie_word_embeddings": False}


def _qwen(prefix: str, text: TextSide, config: Callable[[Ids], Json], patch_size: int) -> Family:
    files = partial(qwen_files, prefix, patch_size)
    return Family(text, f"{prefix}ForConditionalGeneration", config, files)


SPECS = MappingProxyType(
    {
        "qwen2_vl": _qwen("Qwen2VL", tiny_text.QWEN2_VL, _qwen2_vl, 14),
        "qwen2_5_vl": _qwen("Qwen2_5_VL", tiny_text.QWEN2_VL, _qwen2_5_vl, 14),
        "qwen3_vl": _qwen("Qwen3VL", tiny_text.QWEN3_VL, _qwen3_vl, 16),
        "qwen3_vl_moe": _qwen("Qwen3VLMoe", tiny_text.QWEN3_VL, _qwen3_vl_moe, 16),
        "llava_onevision": Family(
            tiny_text.LLAVA_ONEVISION,
            "LlavaOnevisionForConditionalGeneration",
            _llava_onevision,
            llava_files,
        ),
        "llava": Family(tiny_text.LLAVA, "LlavaForConditionalGeneration", _llava, llava15_files),
        "internvl": Family(
            tiny_text.INTERNVL, "InternVLForConditionalGeneration", _internvl, internvl_files
        ),
        "mistral3": Family(
            tiny_text.MISTRAL3, "Mistral3ForConditionalGeneration", _mistral3, mistral3_files
        ),
        "smolvlm": Family(
            tiny_text.SMOLVLM, "SmolVLMForConditionalGeneration", _smolvlm, smolvlm_files
        ),
        "gemma3": Family(
            tiny_text.GEMMA3,
            "Gemma3ForConditionalGeneration",
            _gemma3,
            gemma_files,
            embedding_std=0.03,  # the model multiplies embeddings by sqrt(hidden)
            last_norm=12.0,
        ),
        "gemma4": Family(
            tiny_text.GEMMA4,
            "Gemma4ForConditionalGeneration",
            _gemma4,
            gemma4_files,
            embedding_std=0.03,  # the model multiplies embeddings by sqrt(hidden)
            last_norm=12.0,
        ),
        "qwen2_audio": Family(
            tiny_text.QWEN2_AUDIO,
            "Qwen2AudioForConditionalGeneration",
            _qwen2_audio,
            audio_files,
        ),
        "llama": Family(tiny_text.LLAMA, "LlamaForCausalLM", _llama),
        "qwen3": Family(tiny_text.CHATML_TEXT, "Qwen3ForCausalLM", _qwen3),
        "qwen3_next": Family(tiny_text.CHATML_TEXT, "Qwen3NextForCausalLM", _qwen3_next),
    }
)
