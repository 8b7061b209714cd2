"""Chat templates: the text is, character for character, what transformers renders."""

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from protocol.errors import ConfigError, InvalidRequest
from services.frontend.prompts.template import ChatTemplate
from tests.support.chat_templates import TEMPLATES
from tests.support.frontend_helpers import text_part

TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}
IMAGE = {"type": "image"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather <now> & \"then\", 'there' — à Zürich",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich", "a": 1}},
}

CHATS: dict[str, dict[str, Any]] = {
    "plain": {"messages": [{"role": "user", "content": "Hello"}]},
    "blank": {"messages": [{"role": "user", "content": "  a\n\n "}]},
    "system": {
        "messages": [
            {"role": "system", "content": " Be brief. "},
            {"role": "user", "content": "<b>Hi</b> {{ 7 * 7 }} {% if %}"},
            {"role": "assistant", "content": "Hello\n"},
            {"role": "user", "content": "Bye — ünïcode 你好 🙂"},
        ]
    },
    "parts": {"messages": [{"role": "user", "content": [IMAGE, text_part("What?"), IMAGE]}]},
    "thoughts": {
        "messages": [
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": "<think>\neasy\n</think>\n\n2"},
            {"role": "user", "content": "<tool_response>3</tool_response>"},
        ],
        "enable_thinking": False,
    },
    "reasoning": {
        "messages": [
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": "2", "reasoning_content": "\nso easy\n"},
        ]
    },
    "tools": {
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "content": "sunny"},
            {"role": "tool", "content": "warm"},
        ],
        "tools": [TOOL],
    },
    "variables": {
        "messages": [{"role": "user", "content": [IMAGE, text_part("x")]}],
        "add_vision_id": True,
        "date_string": "1 Jan 2000",
    },
    "closed": {
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
        ],
        "add_generation_prompt": False,
    },
    "skipped": {
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "function", "content": "ignored"},
            {"role": "assistant", "content": "Hi"},
        ],
    },
}


def truth(source: str, messages: Any, **options: Any) -> str | None:
    """transformers' rendering, None if it raises."""
    options = {"add_generation_prompt": True, **options}
    try:
        rendered, _ = render_jinja_template([messages], chat_template=source, **TOKENS, **options)
    except Exception:
        return None
    text: str = rendered[0]
    return text


def ours(source: str, messages: Any, **options: Any) -> str | None:
    template = ChatTemplate(source, TOKENS)
    known = {"tools": None, "add_generation_prompt": True}
    named = {name: options.pop(name, default) for name, default in known.items()}
    try:
        return template.render(messages, **named, variables=options)
    except InvalidRequest as error:
        assert error.param == "messages"
        return None


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
def test_rendering_is_that_of_transformers(name: str, chat: str) -> None:
    source = TEMPLATES[name]
    assert ours(source, **CHATS[chat]) == truth(source, **CHATS[chat])


def test_the_comparison_covers_text_and_errors() -> None:
    texts = [truth(TEMPLATES[name], **chat) for name in TEMPLATES for chat in CHATS.values()]
    assert sum(text is not None for text in texts) > 45
    assert sum(text is None for text in texts) >= 2


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize(
    "content",
    ["It is", "It is ", " It\n", [text_part("It is ")], [text_part("a"), text_part("b ")]],
)
def test_an_open_end_is_that_of_transformers(name: str, content: Any) -> None:
    source = TEMPLATES[name]
    messages = [
        {"role": "user", "content": [text_part("What?")] if isinstance(content, list) else "What?"},
        {"role": "assistant", "content": content},
    ]
    expected = truth(source, messages, continue_final_message=True, add_generation_prompt=False)
    try:
        text = ChatTemplate(source, TOKENS).render_open_end(messages)
    except InvalidRequest:
        text = None
    assert text == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[99].content }}",
        "{{ 1 / 0 }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(_x=1) %}",
        "{{ nothing + 1 }}",
        "{{ range(10**12) | list }}",
    ],
)
def test_any_error_of_a_template_is_about_the_messages(source: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])
    assert caught.value.param == "messages"


def test_a_template_that_does_not_compile_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="line 2"):
        ChatTemplate("ok\n{% if %}", {})


@pytest.mark.parametrize(
    ("name", "parts", "strings", "images"),
    [
        ("qwen2_vl", True, True, True),
        ("chatml", True, True, True),
        ("gemma3", True, True, True),
        ("gemma4", True, True, True),
        ("llava_onevision", True, False, True),
        ("internvl", True, True, True),
        ("mistral3", True, True, True),
        ("smolvlm", True, False, True),
        ("llama", False, True, False),
        ("qwen3_tools", False, True, False),
    ],
)
def test_the_form_of_content_is_found_out(
    name: str, parts: bool, strings: bool, images: bool
) -> None:
    template = ChatTemplate(TEMPLATES[name], TOKENS)
    found = (template.takes_parts, template.takes_strings, template.marks("image"))
    assert found == (parts, strings, images)


def test_client_variables_cannot_replace_the_messages() -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ bos_token }}", TOKENS)
    variables = {"messages": [{"content": "forged"}], "bos_token": "<other>"}
    text = template.render([{"role": "user", "content": "true"}], variables=variables)
    assert text == "true<other>"
