"""Model families, one file each behind `base.Family`.

base             the interface: from a picture's, clip's or audio's size to its tokens; `Text`:
                 every model without media
qwen_vl          Qwen2-VL, Qwen2.5-VL, Qwen3-VL and its mixture of experts
qwen_clips       clips for Qwen2-VL and Qwen2.5-VL
timed_clips      clips for Qwen3-VL
gemma3           Gemma 3
gemma4           Gemma 4
internvl         InternVL 3, as transformers has it
llava_onevision  LLaVA-OneVision
mistral3         Mistral 3
qwen2_audio      Qwen2-Audio
smolvlm          SmolVLM
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from protocol.errors import ConfigError
from protocol.plugins import find_class
from services.frontend.families.base import Audio, Clips, Extent, Family, Placeholder, Text
from services.frontend.families.gemma3 import Gemma3
from services.frontend.families.gemma4 import Gemma4
from services.frontend.families.internvl import InternVL
from services.frontend.families.llava_onevision import LlavaOnevision
from services.frontend.families.mistral3 import Mistral3
from services.frontend.families.qwen2_audio import Qwen2Audio
from services.frontend.families.qwen_vl import QwenVL
from services.frontend.families.smolvlm import SmolVLM
from services.frontend.model_info import ModelInfo
from services.frontend.tokenizer import Tokenizer

FAMILIES: Mapping[str, Callable[[ModelInfo, Tokenizer], Family]] = MappingProxyType(
    {
        "qwen2_vl": QwenVL,
        "qwen2_5_vl": QwenVL,
        "qwen3_vl": QwenVL,
        "qwen3_vl_moe": QwenVL,
        "qwen2_audio": Qwen2Audio,
        "gemma3": Gemma3,
        "gemma4": Gemma4,
        "internvl": InternVL,
        "llava_onevision": LlavaOnevision,
        "mistral3": Mistral3,
        "smolvlm": SmolVLM,
    }
)


def load_family(info: ModelInfo, tokenizer: Tokenizer) -> Family:
    """The family of a model; `ConfigError` names a model type that takes media but is not known."""
    kind = FAMILIES.get(info.model_type) or find_class("families", info.model_type, Family)
    if kind is not None:
        return kind(info, tokenizer)
    if not info.has_media:
        return Text()
    raise ConfigError(
        f"model type '{info.model_type}' takes media, but the frontend does not know how many "
        f"tokens they become; known are {', '.join(sorted(FAMILIES))}, "
        "and a package may bring more (examples/plugin)"
    )


__all__ = ["FAMILIES", "Audio", "Clips", "Extent", "Family", "Placeholder", "load_family"]
