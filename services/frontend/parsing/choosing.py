"""Which family's form a model writes: by a flag's name, or by what its chat template says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from protocol.errors import ConfigError
from protocol.plugins import find_class, find_plugin, plugin_names
from services.frontend.parsing.base import ToolFormat
from services.frontend.parsing.deepseek import DeepSeek, DeepSeek31
from services.frontend.parsing.dsml import DeepSeek4, DeepSeek32
from services.frontend.parsing.gemma import FunctionGemma, Gemma4Format
from services.frontend.parsing.glm import GLM, GLM47
from services.frontend.parsing.harmony import Harmony
from services.frontend.parsing.json_call import Hermes
from services.frontend.parsing.llama3 import Llama3
from services.frontend.parsing.mistral import Mistral, MistralList
from services.frontend.parsing.qwen3_coder import Qwen3Coder
from services.frontend.parsing.reading import Thinking

AUTO, NONE = "auto", "none"
# Named as vLLM names them.
TOOL_FORMATS: Mapping[str, type[ToolFormat]] = MappingProxyType(
    {
        "deepseek_v3": DeepSeek,
        "deepseek_v31": DeepSeek31,
        "deepseek_v32": DeepSeek32,
        "deepseek_v4": DeepSeek4,
        "functiongemma": FunctionGemma,
        "gemma4": Gemma4Format,
        "glm45": GLM,
        "glm47": GLM47,
        "hermes": Hermes,
        "llama3_json": Llama3,
        "mistral": Mistral,
        "mistral_list": MistralList,
        "openai": Harmony,
        "qwen3_coder": Qwen3Coder,
    }
)
# Further names of vLLM's for the same forms.
TOOL_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "llama4_json": "llama3_json",
        "qwen3_json": "hermes",
        "qwen3_xml": "qwen3_coder",
        "step3p5": "qwen3_coder",
    }
)
# What only a family's own templates write, all of it, the more particular first.
_SIGNS: tuple[tuple[tuple[str, ...], type[ToolFormat]], ...] = (
    (("<|channel|>", "<|start|>"), Harmony),
    (("<｜tool▁call▁begin｜>", "```json"), DeepSeek),
    (("<｜tool▁call▁begin｜>",), DeepSeek31),
    (("｜DSML｜", "tool_calls>"), DeepSeek4),
    (("｜DSML｜",), DeepSeek32),
    (("[TOOL_CALLS]", "[ARGS]"), Mistral),
    (("[TOOL_CALLS]",), MistralList),
    (("<|tool_call>",), Gemma4Format),
    (("<start_function_call>",), FunctionGemma),
    (("</arg_key><arg_value>",), GLM47),
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
THINKING_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "deepseek_v3": "deepseek_r1",
        "deepseek_v4": "deepseek_r1",
        "glm47": "glm45",
        "holo2": "deepseek_r1",
        "kimi_k2": "deepseek_r1",
        "mimo": "qwen3",
        "minimax_m2": "deepseek_r1",
        "nemotron_v3": "qwen3",
        "step3p5": "qwen3",
    }
)
# vLLM's name for the reasoning of a form that has no marks around it but channels.
CHANNELS = "openai_gptoss"
TOOL_NAMES = (
    AUTO,
    *sorted({*TOOL_FORMATS, *TOOL_ALIASES}),
    *plugin_names("tool_parsers"),
    NONE,
)
THINKING_NAMES = (
    AUTO,
    *sorted({*THINKING, *THINKING_ALIASES, CHANNELS}),
    *plugin_names("reasoning_parsers"),
    NONE,
)


@dataclass(frozen=True)
class Parsers:
    """How answers are read: by name, "auto" for what the template shows. `ConfigError` if the
    reasoning is on channels and calls are of another form, which would hide them."""

    tools: str = AUTO
    reasoning: str = AUTO

    def __post_init__(self) -> None:
        if self.reasoning == CHANNELS and self.tools not in (AUTO, "openai"):
            raise ConfigError(
                f"--reasoning-parser {CHANNELS} needs --tool-call-parser openai or auto, not"
                f" {self.tools}"
            )

    def tool_format(self, template: str) -> type[ToolFormat] | None:
        """For answers that follow a prompt of this template."""
        return tool_format("openai" if self.reasoning == CHANNELS else self.tools, template)

    def thinking(self, template: str) -> Thinking | None:
        """As `tool_format`, for reasoning between marks."""
        return thinking(self.reasoning, template)


def tool_format(name: str, template: str) -> type[ToolFormat] | None:
    """The form called `name`; by `template`, a chat template's source, if that is "auto".

    A template that shows no form of its own gets Llama 3's, which needs no marks.
    """
    if name != AUTO:
        name = TOOL_ALIASES.get(name, name)
        return TOOL_FORMATS.get(name) or find_class("tool_parsers", name, ToolFormat)
    for signs, found in _SIGNS:
        if all(sign in template for sign in signs):
            return found
    return Llama3


def thinking(name: str, template: str) -> Thinking | None:
    """As `tool_format`, for reasoning; None if the template shows none."""
    if name != AUTO:
        name = THINKING_ALIASES.get(name, name)
        return THINKING.get(name) or _thinking_plugin(name)
    return next((t for t in THINKING.values() if t.open in template or t.close in template), None)


def _thinking_plugin(name: str) -> Thinking | None:
    found = find_plugin("reasoning_parsers", name)
    if found is not None and not isinstance(found, Thinking):
        raise ConfigError(
            f"--reasoning-parser: entry point '{name}' must be an instance of"
            " services.frontend.parsing.reading.Thinking"
        )
    return found
