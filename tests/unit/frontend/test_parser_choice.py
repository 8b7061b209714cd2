"""Which form of calls and reasoning a template shows, and names that go before it."""

import pytest

from protocol.errors import ConfigError
from services.frontend.parsing.reading import (
    THINKING_ALIASES,
    THINKING_NAMES,
    TOOL_FORMATS,
    Parsers,
    Thinking,
    thinking,
    tool_format,
)

# What the families' own templates write around a call, cut down to that.
SHOWN = {
    "hermes": """{%- for call in message.tool_calls %}
        {{- '\n<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}
        {{- call.arguments | tojson + '}\n</tool_call>' }}{% endfor %}""",
    "qwen3_coder": """{{- '\n<tool_call>\n<function=' + call.name + '>\n' }}
        {%- for name, value in call.arguments | items %}
        {{- '<parameter=' + name + '>\n' + value + '\n</parameter>\n' }}{% endfor %}
        {{- '</function>\n</tool_call>' }}""",
    "glm45": """{{ '\n<tool_call>' + call.name }}{% for k, v in call.arguments.items() %}
        <arg_key>{{ k }}</arg_key>
        <arg_value>{{ v | tojson }}</arg_value>{% endfor %}</tool_call>""",
    "glm47": """{{ '<tool_call>' + call.name -}}{% for k, v in call.arguments.items() -%}
        <arg_key>{{ k }}</arg_key><arg_value>{{ v | tojson }}</arg_value>
        {%- endfor %}</tool_call>""",
    "deepseek_v3": """{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + call.type
        + '<｜tool▁sep｜>' + call.function.name + '\n' + '```json' + '\n'
        + call.function.arguments + '\n' + '```' + '<｜tool▁call▁end｜>' }}""",
    "deepseek_v31": """{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + call.function.name
        + '<｜tool▁sep｜>' + call.function.arguments + '<｜tool▁call▁end｜>' }}""",
    "deepseek_v32": """{% set dsml = '｜DSML｜' %}{{ '<' + dsml + 'function_calls>\n<' + dsml
        + 'invoke name="' + call.name + '">' }}{% for k, v in call.arguments.items() %}{{ v }}
        {% endfor %}{{ '</' + dsml + 'function_calls>' }}""",
    "deepseek_v4": """{{ '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="' + call.name + '">' }}""",
    "mistral": """{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + arguments }}""",
    "mistral_list": """{{- '[TOOL_CALLS][' }}{% for call in message.tool_calls %}
        {{- call.function | tojson }}{% endfor %}{{- ']' + eos_token }}""",
    "gemma4": """{{- '<|tool_call>call:' + call.name + '{' }}
        {%- for k, v in call.arguments.items() %}{{ k + ':<|"|>' + v + '<|"|>' }}{% endfor %}
        {{- '}<tool_call|>' }}""",
    "functiongemma": """{{- '<start_function_call>call:' + call.name + '{' }}
        {%- for k, v in call.arguments.items() %}{{ k + ':<escape>' + v + '<escape>' }}{% endfor %}
        {{- '}<end_function_call>' }}""",
    "openai": """{{- '<|start|>assistant to=functions.' + call.name
        + '<|channel|>commentary json<|message|>' + call.arguments | tojson + '<|call|>' }}""",
    "llama3_json": """{{- '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson + '}' }}{% for tool in tools %}{% endfor %}""",
}


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_a_template_shows_its_family(name: str) -> None:
    assert tool_format("auto", SHOWN[name]) is TOOL_FORMATS[name]


def test_a_name_goes_before_the_template() -> None:
    assert tool_format("none", "<tool_call>") is None
    assert tool_format("mistral", "<tool_call>") is TOOL_FORMATS["mistral"]
    assert thinking("auto", "{{ messages }}") is None and thinking("none", "</think>") is None
    assert thinking("auto", "a</think>b") == thinking("auto", "a<think>") == Thinking()


def test_vllms_names_of_reasoning_are_known() -> None:
    for name in THINKING_ALIASES:
        assert name in THINKING_NAMES and thinking(name, "") == Thinking()
    parsers = Parsers(reasoning="openai_gptoss")
    assert parsers.tool_format("") is TOOL_FORMATS["openai"] and parsers.thinking("") is None
    with pytest.raises(ConfigError, match="openai or auto, not hermes"):
        Parsers("hermes", "openai_gptoss")
