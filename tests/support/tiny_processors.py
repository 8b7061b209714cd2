"""Processor files of the tiny model families, as the published checkpoints write them."""

from typing import Any

Json = dict[str, Any]
PINPOINTS = [[28, 28], [28, 56], [56, 28], [56, 56], [28, 84], [84, 28]]


def qwen_files(prefix: str, patch_size: int) -> dict[str, Json]:
    """Of pictures and of clips; `prefix` is that of the model's class."""
    preprocessor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": f"{prefix.removesuffix('Moe')}Processor",
        "size": {"shortest_edge": 4 * (2 * patch_size) ** 2, "longest_edge": 224 * 224},
        "patch_size": patch_size,
        "temporal_patch_size": 2,
        "merge_size": 2,
    }
    timed = prefix.startswith("Qwen3")
    most = 112 * 112 * (20 if timed else 1)  # of all frames, or of each
    clips = {
        **{name: value for name, value in preprocessor.items() if not name.startswith("image")},
        "video_processor_type": f"Qwen{3 if timed else 2}VLVideoProcessor",
        "size": {"shortest_edge": 4 * (2 * patch_size) ** 2, "longest_edge": most},
        "max_frames": 40,
    }
    return {"preprocessor_config.json": preprocessor, "video_preprocessor_config.json": clips}


def llava_files() -> dict[str, Json]:
    preprocessor = {
        "image_processor_type": "LlavaOnevisionImageProcessor",
        "processor_class": "LlavaOnevisionProcessor",
        "size": {"height": 28, "width": 28},
        "image_grid_pinpoints": PINPOINTS,
    }
    processor = {
        "processor_class": "LlavaOnevisionProcessor",
        "num_image_tokens": 16,
        "image_token": "<image>",
        "video_token": "<video>",
        "vision_feature_select_strategy": "full",
        "vision_aspect_ratio": "anyres_max_4",
    }
    return {"preprocessor_config.json": preprocessor, "processor_config.json": processor}


def internvl_files() -> dict[str, Json]:
    preprocessor = {
        "image_processor_type": "GotOcr2ImageProcessor",
        "processor_class": "InternVLProcessor",
        "size": {"height": 56, "width": 56},
        "crop_to_patches": False,
        "min_patches": 1,
        "max_patches": 3,
    }
    processor = {"processor_class": "InternVLProcessor", "image_seq_length": 16}
    return {"preprocessor_config.json": preprocessor, "processor_config.json": processor}


def mistral3_files() -> dict[str, Json]:
    preprocessor = {
        "image_processor_type": "PixtralImageProcessor",
        "processor_class": "PixtralProcessor",
        "patch_size": 7,
        "size": {"longest_edge": 112},
    }
    processor = {"processor_class": "PixtralProcessor", "patch_size": 7, "spatial_merge_size": 2}
    return {"preprocessor_config.json": preprocessor, "processor_config.json": processor}


def smolvlm_files() -> dict[str, Json]:
    preprocessor = {
        "image_processor_type": "SmolVLMImageProcessor",
        "processor_class": "SmolVLMProcessor",
        "do_image_splitting": True,
        "size": {"longest_edge": 84},
        "max_image_size": {"longest_edge": 56},
    }
    processor = {"processor_class": "SmolVLMProcessor", "image_seq_len": 16}
    return {"preprocessor_config.json": preprocessor, "processor_config.json": processor}


def llava15_files() -> dict[str, Json]:
    preprocessor = {
        "image_processor_type": "CLIPImageProcessor",
        "processor_class": "LlavaProcessor",
        "size": {"shortest_edge": 28},
        "crop_size": {"height": 28, "width": 28},
    }
    return {"preprocessor_config.json": preprocessor}


def audio_files() -> dict[str, Json]:
    """A window of two seconds, as 50 tokens."""
    preprocessor = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "Qwen2AudioProcessor",
        "feature_size": 16,
        "chunk_length": 2,
        "hop_length": 160,
        "n_fft": 400,
        "n_samples": 32000,
        "nb_max_frames": 200,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
        "sampling_rate": 16000,
    }
    return {"preprocessor_config.json": preprocessor}


def gemma_files() -> dict[str, Json]:
    preprocessor = {
        "image_processor_type": "Gemma3ImageProcessor",
        "processor_class": "Gemma3Processor",
        "size": {"height": 56, "width": 56},
        "image_seq_length": 16,
    }
    processor = {"processor_class": "Gemma3Processor", "image_seq_length": 16}
    return {"preprocessor_config.json": preprocessor, "processor_config.json": processor}


def gemma4_files() -> dict[str, Json]:
    preprocessor = {
        "image_processor_type": "Gemma4ImageProcessor",
        "processor_class": "Gemma4Processor",
        "patch_size": 4,
        "pooling_kernel_size": 3,
        "max_soft_tokens": 70,
    }
    return {"preprocessor_config.json": preprocessor}
