"""How answers are read: which form a model writes, by a flag's name or by what its chat template
says; and one answer, reasoning first, then text and calls."""

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
from services.frontend.parsing.heard import Heard, Listener
from services.frontend.parsing.json_call import Hermes
from services.frontend.parsing.llama3 import Llama3
from services.frontend.parsing.mistral import Mistral, MistralList
from services.frontend.parsing.qwen3_coder import Qwen3Coder
from services.frontend.parsing.source import Source, Steps


@dataclass(frozen=True)
class Thinking:
    """The marks of one family. White space inside and after them belongs to the form."""

    open: str = "<think>"
    close: str = "</think>"

    def is_open(self, prompt: str) -> bool:
        """Whether a prompt ends where the model has to think."""
        return prompt.rstrip().endswith(self.open)

    def read(self, source: Source, out: Listener, *, inside: bool) -> Steps[None]:
        """Read what comes before the answer. `inside`: the prompt has opened it."""
        source.start()
        yield from source.blanks()
        if not (yield from source.take(self.open)) and not inside:
            # No mark: what was read belongs to the answer.
            source.back()
            return
        yield from source.blanks()
        gap = ""

        def tell(piece: str) -> None:
            nonlocal gap
            # White space at the end belongs to the mark if that follows.
            piece = gap + piece
            kept = piece.rstrip()
            gap = piece[len(kept) :]
            out.reasoning(kept)

        yield from source.pass_to(tell, [self.close])
        yield from source.blanks()
        source.start()


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
TOOL_NAMES = (AUTO, *sorted({*TOOL_FORMATS, *TOOL_ALIASES}), *plugin_names("tool_parsers"), NONE)
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


@dataclass(frozen=True)
class Reading:
    """Of one request, for each of its choices."""

    tools: ToolFormat | None = None  # None leaves calls in the text
    thinking: Thinking | None = None  # None leaves reasoning in the text
    inside: bool = False  # whether the prompt has opened the reasoning
    most: int = 0  # calls that are told; others are dropped
    only: bool = False  # there is no text beside the calls

    @property
    def marks(self) -> frozenset[str]:
        """What must be read even if the model has special tokens for it."""
        tools = self.tools.marks if self.tools is not None else ()
        thinking = self.thinking
        return frozenset((*tools, *((thinking.open, thinking.close) if thinking else ())))

    def reader(self) -> Reader | None:
        """For one choice, None if its text is taken as it is."""
        return Reader(self) if self.tools is not None or self.thinking is not None else None


class Reader:
    """The one interface for streamed and whole answers: a whole answer is the stream, joined."""

    def __init__(self, reading: Reading) -> None:
        self._source = Source()
        new_id = reading.tools.new_id if reading.tools is not None else None
        self._listener = Listener(reading.most, only=reading.only, new_id=new_id)
        self._steps = _read(reading, self._source, self._listener)

    def push(self, text: str) -> Heard:
        """Add text."""
        self._source.add(text)
        next(self._steps, None)
        return self._listener.take()

    def last(self, text: str = "") -> Heard:
        """Add text after which no more comes; nothing is held back."""
        self._source.add(text)
        self._source.end()
        next(self._steps, None)
        self._listener.close()
        return self._listener.take()


def _read(reading: Reading, source: Source, out: Listener) -> Steps[None]:
    if reading.thinking is not None:
        yield from reading.thinking.read(source, out, inside=reading.inside)
    if reading.tools is not None:
        yield from reading.tools.read(source, out)
    # All of it where there are no tools: a form reads to the end by itself.
    yield from source.pass_to(out.text, ())
