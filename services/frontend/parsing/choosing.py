"""Which family's form a model writes: by a flag's name, or by what its chat template says."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from protocol.errors import ConfigError
from protocol.plugins import find_class, find_plugin, plugin_names
from services.frontend.parsing.base import ToolFormat
from services.frontend.parsing.deepseek import DeepSeek, DeepSeek31
from services.frontend.parsing.gemma import FunctionGemma, Gemma4
from services.frontend.parsing.glm import GLM
from services.frontend.parsing.harmony import Harmony
from services.frontend.parsing.hermes import Hermes
from services.frontend.parsing.llama3 import Llama3
from services.frontend.parsing.mistral import Mistral, MistralList
from services.frontend.parsing.qwen3_coder import Qwen3Coder
from services.frontend.parsing.thinking import Thinking

AUTO, NONE = "auto", "none"
# Named as vLLM names them.
TOOL_FORMATS: Mapping[str, type[ToolFormat]] = MappingProxyType(
    {
        "deepseek_v3": DeepSeek,
        "deepseek_v31": DeepSeek31,
        "functiongemma": FunctionGemma,
        "gemma4": Gemma4,
        "glm45": GLM,
        "hermes": Hermes,
        "llama3_json": Llama3,
        "mistral": Mistral,
        "mistral_list": MistralList,
        "openai": Harmony,
        "qwen3_coder": Qwen3Coder,
    }
)
# What only a family's own templates write, all of it, the more particular first.
_SIGNS: tuple[tuple[tuple[str, ...], type[ToolFormat]], ...] = (
    (("<|channel|>", "<|start|>"), Harmony),
    (("<｜tool▁call▁begin｜>", "```json"), DeepSeek),
    (("<｜tool▁call▁begin｜>",), DeepSeek31),
    (("[TOOL_CALLS]", "[ARGS]"), Mistral),
    (("[TOOL_CALLS]",), MistralList),
    (("<|tool_call>",), Gemma4),
    (("<start_function_call>",), FunctionGemma),
    (("<arg_key>",), GLM),
    (("<function=",), Qwen3Coder),
    (("<tool_call>",), Hermes),
)
THINKING: Mapping[str, Thinking] = MappingProxyType(
    {
        "deepseek_r1": Thinking(),
        "gemma4": Thinking("<|channel>thought", "<channel|>"),
        "glm45": Thinking(),
        "mistral": Thinking("[THINK]", "[/THINK]"),
        "qwen3": Thinking(),
    }
)
TOOL_NAMES = (AUTO, *TOOL_FORMATS, *plugin_names("tool_parsers"), NONE)
THINKING_NAMES = (AUTO, *THINKING, *plugin_names("reasoning_parsers"), NONE)


def tool_format(name: str, template: str) -> type[ToolFormat] | None:
    """The form called `name`; by `template`, a chat template's source, if that is "auto".

    A template that shows no form of its own gets Llama 3's, which needs no marks.
    """
    if name != AUTO:
        return TOOL_FORMATS.get(name) or find_class("tool_parsers", name, ToolFormat)
    for signs, found in _SIGNS:
        if all(sign in template for sign in signs):
            return found
    return Llama3


def thinking(name: str, template: str) -> Thinking | None:
    """As `tool_format`, for reasoning; None if the template shows none."""
    if name != AUTO:
        return THINKING.get(name) or _thinking_plugin(name)
    return next((t for t in THINKING.values() if t.open in template or t.close in template), None)


def _thinking_plugin(name: str) -> Thinking | None:
    found = find_plugin("reasoning_parsers", name)
    if found is not None and not isinstance(found, Thinking):
        raise ConfigError(
            f"--reasoning-parser: entry point '{name}' must be an instance of"
            " services.frontend.parsing.thinking.Thinking"
        )
    return found
