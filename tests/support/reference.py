"""What transformers itself generates for a conversation: the truth that serving is compared with.

The steps are those of the family's own processor, which cannot be loaded without torchvision:
chat template, image and video processor, every placeholder expanded by that processor's own code,
token ids, token types, then `generate()` in float32.
"""

import importlib
import json
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
)
from transformers.image_utils import load_image
from transformers.utils import is_torchvision_available

from tests.support.remembered import remembered
from tests.support.video_reference import process, process_timed

Messages = list[dict[str, Any]]
Inputs = dict[str, Any]

FPS = 2.0  # what servers take of a clip
PROCESSORS = (
    ("qwen2_vl", "Qwen2VLProcessor"),
    ("qwen2_5_vl", "Qwen2_5_VLProcessor"),
    ("qwen3_vl", "Qwen3VLProcessor"),
    ("qwen3_vl_moe", "Qwen3VLProcessor"),
    ("llava_onevision", "LlavaOnevisionProcessor"),
    ("gemma3", "Gemma3Processor"),
    ("gemma4", "Gemma4Processor"),
    ("internvl", "InternVLProcessor"),
    ("mistral3", "PixtralProcessor"),
    ("smolvlm", "SmolVLMProcessor"),
    ("llava", "LlavaProcessor"),
)
# Without it Qwen's positions become one-dimensional and Gemma's pictures causal, silently.
TOKEN_TYPES = (
    ("qwen2_vl", "mm_token_type_ids"),
    ("qwen2_5_vl", "mm_token_type_ids"),
    ("qwen3_vl", "mm_token_type_ids"),
    ("qwen3_vl_moe", "mm_token_type_ids"),
    ("gemma3", "token_type_ids"),
    ("gemma4", "mm_token_type_ids"),
)

PROCESSORS_OWN = (
    "num_crops", "num_patches", "num_soft_tokens_per_image", "rows", "cols", "video_metadata",
)  # fmt: skip


@dataclass(frozen=True)
class Reference:
    """A loaded model directory; use `load`, which keeps one per directory."""

    config: PreTrainedConfig
    tokenizer: Any
    model: Any
    image_processor: Any  # None for a text model
    processor: Any  # the family's processor without its tokenizer
    eos: tuple[int, ...]
    clips: dict[str, Any]  # the video processor's options, {} without one

    def inputs(
        self,
        messages: Messages,
        *,
        size: dict[str, int] | None = None,
        sampling: dict[str, Any] | None = None,
        **template: Any,
    ) -> Inputs:
        """`generate()`'s arguments for one conversation; every tensor has batch size 1. `sampling`:
        fps or num_frames of its clips."""
        images = _images(messages)
        prompt = self.tokenizer.apply_chat_template(
            _normalized(messages, flat=self.processor is None),
            tokenize=False,
            add_generation_prompt=True,
            **template,
        )
        media = self._media(images, {} if size is None else {"size": size})
        media |= self._videos(_clips(messages), sampling or {"fps": FPS})
        ids = self.tokenizer(
            self._expanded(prompt, media, len(images), len(_clips(messages))),
            add_special_tokens=False,
            return_tensors="pt",
        )["input_ids"]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **media}
        if (name := dict(TOKEN_TYPES).get(self.config.model_type)) is not None:
            inputs[name] = (ids == self.config.image_token_id).int()
            if self.clips:
                inputs[name] += 2 * (ids == self.config.video_token_id).int()
        for name in PROCESSORS_OWN:
            inputs.pop(name, None)
        return inputs

    def generate(self, inputs: Inputs, max_new_tokens: int, ignore_eos: bool = False) -> list[int]:
        """Greedy new token ids, the end-of-sequence token included if it came."""
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=None if ignore_eos else list(self.eos),
            pad_token_id=self.tokenizer.pad_token_id,
        )
        with torch.inference_mode():
            output = self.model.generate(**inputs, generation_config=config)
        tokens: list[int] = output[0, inputs["input_ids"].shape[1] :].tolist()
        return tokens

    def beams(self, inputs: Inputs, ends: list[int], **options: Any) -> list[list[int]]:
        """New token ids of a beam search, the best first, up to the first of `ends`."""
        config = GenerationConfig(
            do_sample=False,
            eos_token_id=ends or None,
            pad_token_id=self.tokenizer.pad_token_id,
            **options,
        )
        with torch.inference_mode():
            output = self.model.generate(**inputs, generation_config=config)
        return [_until(row.tolist(), ends) for row in output[:, inputs["input_ids"].shape[1] :]]

    def written(self, images: list[Any]) -> list[str]:
        """What stands in a prompt for each picture."""
        media = self._media(images, {})
        count = range(len(images))
        return [self.processor.replace_image_token(media, index) for index in count]

    def _media(self, images: list[Any], options: dict[str, Any]) -> Inputs:
        if not images:
            return {}
        if self.config.model_type == "internvl":
            options = {**options, "crop_to_patches": True}  # a default of its processor's class
        if self.config.model_type == "mistral3":
            options = {**options, "patch_size": self.processor.patch_size * 2}
        if self.config.model_type == "smolvlm":
            options = {**options, "return_row_col_info": True}
        return dict(self.image_processor(images=images, return_tensors="pt", **options))

    def _videos(self, clips: list[Any], sampling: dict[str, Any]) -> Inputs:
        if not clips:
            return {}
        timed = self.config.model_type.startswith("qwen3")
        processed = process_timed if timed else process
        made = [processed(*clip.decoded, **self.clips, **sampling) for clip in clips]
        media: Inputs = {
            name: torch.cat([one[name] for one in made])
            for name in ("pixel_values_videos", "video_grid_thw")
        }
        if self.config.model_type == "qwen2_5_vl":
            seconds = [one["second_per_grid_ts"][0] for one in made]
            media["second_per_grid_ts"] = torch.tensor(seconds)
        if timed:
            media["video_metadata"] = [one["video_metadata"] for one in made]
        return media

    def _expanded(self, prompt: str, media: Inputs, images: int, clips: int) -> str:
        if self.processor is None or not images + clips:
            return prompt
        spans = {
            self.processor.image_token: [
                self.processor.replace_image_token(media, index) for index in range(images)
            ],
        }
        if clips:
            spans[self.processor.video_token] = [
                self.processor.replace_video_token(media, index) for index in range(clips)
            ]
        tokens = "|".join(map(re.escape, spans))
        expanded = re.sub(tokens, lambda found: spans[found[0]].pop(0), prompt)
        if any(spans.values()):
            raise ValueError(f"fewer placeholders in the prompt than {images} + {clips}")
        return expanded


@lru_cache(maxsize=16)
def load(model_dir: Path) -> Reference:
    """Loads a model directory in float32 on the CPU, once per process.

    The process's tensor operations get one thread: on matrices this small more threads only wait
    for one another, for seconds where cores are shared.
    """
    torch.set_num_threads(1)
    config = AutoConfig.from_pretrained(model_dir)
    name = dict(PROCESSORS).get(config.model_type)
    auto = AutoModelForCausalLM if name is None else AutoModelForImageTextToText
    model = auto.from_pretrained(model_dir, dtype=torch.float32).eval()
    eos = _take_eos(model)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    if name is None:
        return Reference(config, tokenizer, model, None, None, eos, {})
    image_processor = AutoImageProcessor.from_pretrained(model_dir)
    processor = _placeholder_code(name, config, tokenizer, image_processor)
    clips = _clip_options(model_dir) if config.model_type.startswith("qwen") else {}
    return Reference(config, tokenizer, model, image_processor, processor, eos, clips)


def _clip_options(model_dir: Path) -> dict[str, Any]:
    """What differs from the class's defaults."""
    files = ("video_preprocessor_config.json", "preprocessor_config.json")
    (file, *_) = (model_dir / name for name in files if (model_dir / name).exists())
    names = ("size", "patch_size", "merge_size", "temporal_patch_size", "max_frames")
    return {name: value for name, value in json.loads(file.read_text()).items() if name in names}


def likelihood(model: torch.nn.Module, ids: list[int], context: int) -> tuple[float, bool]:
    """(log-likelihood of the tokens after `context`, whether each is the likeliest one)."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0, context - 1 : -1]
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    tokens = torch.tensor(ids[context:])
    chosen = logprobs.gather(1, tokens[:, None])
    return float(chosen.sum()), bool((logprobs.argmax(-1) == tokens).all())


@remembered
def reference_generate(
    model_dir: Path,
    messages: Messages,
    max_new_tokens: int,
    *,
    ignore_eos: bool = False,
    size: dict[str, int] | None = None,
    sampling: dict[str, Any] | None = None,
    **template: Any,
) -> list[int]:
    """New token ids of `generate()`, greedy, float32, one conversation.

    Args:
        messages: OpenAI messages; pictures as parts `{"type": "image", "image": PIL.Image}`. Text
            is taken literally, special tokens in it included.
        ignore_eos: go on to `max_new_tokens` past any end of sequence.
        size: the image processor's option.
        sampling: fps or num_frames, of the video processor.
        template: more arguments of the chat template, such as `enable_thinking`.
    """
    reference = load(Path(model_dir).resolve())
    inputs = reference.inputs(messages, size=size, sampling=sampling, **template)
    return reference.generate(inputs, max_new_tokens, ignore_eos)


def _until(tokens: list[int], ends: list[int]) -> list[int]:
    for place, token in enumerate(tokens):
        if token in ends:
            return tokens[: place + 1]
    return tokens


def _take_eos(model: Any) -> tuple[int, ...]:
    """Moves the EOS ids out of the model: generate() falls back to them when given none."""
    eos = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = None
    return (eos,) if isinstance(eos, int) else tuple(eos)


def _placeholder_code(
    name: str, config: PreTrainedConfig, tokenizer: Any, image_processor: Any
) -> Any:
    """The processor's `replace_image_token` with what it reads, and nothing else.

    Each picture is processed on its own, as a flat list of pictures is, so that its embedding does
    not depend on the other pictures of the request (LLaVA-OneVision).
    """
    processor_class = _processor_class(name)
    processor = processor_class.__new__(processor_class)
    processor.image_processor = image_processor
    processor.image_token = tokenizer.convert_ids_to_tokens(config.image_token_id)
    if (video_id := getattr(config, "video_token_id", None)) is not None:
        processor.video_token = tokenizer.convert_ids_to_tokens(video_id)
        processor.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    if config.model_type.startswith("qwen3"):
        processor.vision_start_token = "<|vision_start|>"
        processor.vision_end_token = "<|vision_end|>"
    if config.model_type == "llava_onevision":
        vision = config.vision_config
        processor.num_image_tokens = (vision.image_size // vision.patch_size) ** 2
        processor.vision_aspect_ratio = config.vision_aspect_ratio
        processor.vision_feature_select_strategy = config.vision_feature_select_strategy
    if config.model_type == "llava":
        processor.patch_size = config.vision_config.patch_size
        processor.num_additional_image_tokens = 1  # the class token
        processor.vision_feature_select_strategy = config.vision_feature_select_strategy
    if config.model_type == "internvl":
        processor.start_image_token, processor.end_image_token = "<img>", "</img>"
        processor.image_seq_length = config.image_seq_length
    if config.model_type == "mistral3":
        processor.image_break_token, processor.image_end_token = "[IMG_BREAK]", "[IMG_END]"
        processor.patch_size = config.vision_config.patch_size
        processor.spatial_merge_size = config.spatial_merge_size
    if config.model_type == "smolvlm":
        processor.fake_image_token = "<fake_token_around_image>"
        processor.global_image_token = "<global-img>"
        vision = config.vision_config
        side = vision.image_size // vision.patch_size // config.scale_factor
        processor.image_seq_len = side**2
    if config.model_type == "gemma4":
        processor.boi_token, processor.eoi_token = "<|image>", "<image|>"
    if config.model_type == "gemma3":
        begin, end = tokenizer.convert_ids_to_tokens([config.boi_token_id, config.eoi_token_id])
        span = begin + processor.image_token * config.mm_tokens_per_image + end
        processor.full_image_sequence = f"\n\n{span}\n\n"
        processor.image_token = begin
    return processor


def _processor_class(name: str) -> Any:
    """Pixtral's imports a module of torchvision for a function that its Pillow module has too."""
    if name != "PixtralProcessor" or is_torchvision_available():
        return getattr(transformers, name)
    package = "transformers.models.pixtral"
    module = f"{package}.image_processing_pixtral"
    sys.modules[module] = importlib.import_module(f"{package}.image_processing_pil_pixtral")
    try:
        return importlib.import_module(f"{package}.processing_pixtral").PixtralProcessor
    finally:
        del sys.modules[module]


def _images(messages: Messages) -> list[Any]:
    return [load_image(image) for image in _of_kind(messages, "image")]


def _clips(messages: Messages) -> list[Any]:
    return _of_kind(messages, "video")


def _of_kind(messages: Messages, kind: str) -> list[Any]:
    parts = [part for m in messages if isinstance(m["content"], list) for part in m["content"]]
    return [part[kind] for part in parts if part["type"] == kind]


def _normalized(messages: Messages, flat: bool) -> Messages:
    """Content as the template reads it: one string (`flat`) or a list of parts."""
    return [{**m, "content": _content(m["content"], flat)} for m in messages]


def _content(content: str | list[dict[str, Any]], flat: bool) -> str | list[dict[str, Any]]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if flat:
        return "\n".join(part["text"] for part in parts)
    kinds = ("image", "video")
    return [{"type": part["type"]} if part["type"] in kinds else part for part in parts]
