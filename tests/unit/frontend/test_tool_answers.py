"""Answers with tool calls in them, whole and streamed."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.errors import InvalidRequest
from protocol.openai_answers import encode
from protocol.types import RequestOutput
from services.frontend.answers.answering import Answering
from services.frontend.model_info import ModelInfo
from services.frontend.parsing.glm import GLM as GLMForm
from services.frontend.parsing.json_call import Hermes
from services.frontend.parsing.llama3 import Llama3
from services.frontend.parsing.reading import TOOL_FORMATS, Reading, Thinking
from services.frontend.render import Frontend
from services.frontend.spec import OutputSpec
from services.frontend.tokenizer import Tokenizer
from services.frontend.tool_use import ToolUse, tool_use
from tests.support.chat_templates import TEMPLATES
from tests.support.frontend_helpers import chat, frontend, render, user, write_model

BERN = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "at": [1, 2.50]}}\n</tool_call>'
)
HALT = '<tool_call>{"name": "halt"}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "weather"}}]
WEATHER = ("weather", '{"city": "Bern", "at": [1, 2.50]}')


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(ModelInfo.load(write_model("qwen3", tmp_path_factory.mktemp("m"))))


def described(**fields: Any) -> OutputSpec:
    how: dict[str, Any] = {"tools": Hermes(), "most": 9, **fields.pop("reading", {})}
    return OutputSpec("r", "m", True, [1, 2], reading=Reading(**how), **fields)


def outputs(tokenizer: Tokenizer, text: str, finish: str = "stop") -> list[RequestOutput]:
    """One token at a time."""
    ids = tokenizer.encode(text)
    last = len(ids) - 1
    return [
        RequestOutput("r", 0, [token], finish_reason=finish if place == last else None)  # type: ignore[arg-type]
        for place, token in enumerate(ids)
    ]


async def steps(those: Sequence[RequestOutput]) -> AsyncGenerator[list[RequestOutput], None]:
    for output in those:
        yield [output]


def whole(tokenizer: Tokenizer, text: str, finish: str = "stop", **fields: Any) -> dict[str, Any]:
    answering = Answering(described(**fields), tokenizer)
    answer = asyncio.run(answering.whole(steps(outputs(tokenizer, text, finish))))
    choice: dict[str, Any] = msgspec.json.decode(encode(answer))["choices"][0]
    return choice


def streamed(tokenizer: Tokenizer, text: str, **fields: Any) -> list[dict[str, Any]]:
    """The choices of all chunks."""
    first, *rest = outputs(tokenizer, text)

    async def run() -> bytes:
        answering = Answering(described(**fields), tokenizer)
        return b"".join([data async for data in answering.events([first], steps(rest))])

    events = asyncio.run(run()).split(b"\n\n")
    return [json.loads(event[6:])["choices"][0] for event in events if event.startswith(b"data: {")]


def test_a_whole_answer_with_calls(tokenizer: Tokenizer) -> None:
    choice = whole(tokenizer, f"I look.\n{BERN}\n{HALT}")
    one, two = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": "I look.", "refusal": None}
    assert one["id"].startswith("call_") and one["type"] == "function" and one["id"] != two["id"]
    assert one["function"] == {"name": "weather", "arguments": WEATHER[1]}
    assert two["function"] == {"name": "halt", "arguments": "{}"}
    assert choice["finish_reason"] == "tool_calls"


def test_without_text_there_is_no_content_and_without_calls_no_calls(tokenizer: Tokenizer) -> None:
    assert whole(tokenizer, BERN)["message"]["content"] is None
    choice = whole(tokenizer, "No need.")
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"


def test_an_answer_that_is_cut_short_says_so(tokenizer: Tokenizer) -> None:
    choice = whole(tokenizer, f"{HALT}\n{BERN[:-20]}", "length")
    assert choice["finish_reason"] == "length" and choice["message"]["content"] is None
    halt, weather = (call["function"] for call in choice["message"]["tool_calls"])
    assert halt["name"] == "halt"
    # As in a stream, where what was sent cannot be taken back.
    assert weather == {"name": "weather", "arguments": WEATHER[1][:-6]}


def test_a_forced_call_that_is_cut_short_is_no_content(tokenizer: Tokenizer) -> None:
    choice = whole(tokenizer, BERN[:-20], "length", reading={"only": True})
    assert choice["finish_reason"] == "length"
    assert not choice["message"]["content"]
    assert len(choice["message"]["tool_calls"]) == 1
    choice = whole(tokenizer, BERN[:20], "length", reading={"only": True})
    assert not choice["message"]["content"] and "tool_calls" not in choice["message"]


def test_a_stop_string_comes_first(tokenizer: Tokenizer) -> None:
    choice = whole(tokenizer, f"a\n{BERN}", stop=("weather",))
    assert choice["message"]["content"] == 'a\n<tool_call>\n{"name": "'
    assert choice["finish_reason"] == "stop"


def test_a_stream_with_calls(tokenizer: Tokenizer) -> None:
    """Clients join what they are sent by index, as OpenAI's own library does."""
    text, calls, finish = "", dict[int, dict[str, str]](), []
    pieces = 0
    chunks = streamed(tokenizer, f"I look.\n{BERN}\n{HALT}")
    for choice in chunks:
        delta = choice["delta"]
        assert choice["finish_reason"] or delta.get("role") or any(delta.values())
        text += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            pieces += 1
            if call["index"] not in calls:
                assert call["type"] == "function" and call["id"] and call["function"]["name"]
                calls[call["index"]] = call["function"]
            else:
                assert call.keys() == {"index", "function"}
                calls[call["index"]]["arguments"] += call["function"].pop("arguments")
                assert not call["function"]
        finish.append(choice["finish_reason"])
    assert text == "I look."
    assert calls == {
        0: {"name": "weather", "arguments": WEATHER[1]},
        1: {"name": "halt", "arguments": "{}"},
    }
    assert pieces > 9  # arguments come as they are written
    assert finish[-1] == "tool_calls" and set(finish[:-1]) == {None}


def test_reasoning_stands_beside_the_content(tokenizer: Tokenizer) -> None:
    said = f"<think>\nWhere?\n</think>\n\nHere.\n{HALT}"
    how: dict[str, Any] = {"reading": {"thinking": Thinking()}}
    message = whole(tokenizer, said, **how)["message"]
    assert message["reasoning"] == message["reasoning_content"] == "Where?"
    assert message["content"] == "Here." and len(message["tool_calls"]) == 1
    deltas = [choice["delta"] for choice in streamed(tokenizer, said, **how)]
    for name, text in {
        "reasoning": "Where?",
        "reasoning_content": "Where?",
        "content": "Here.",
    }.items():
        assert "".join(delta.get(name, "") for delta in deltas) == text
    cut = whole(tokenizer, "<think>\nWhere", "length", **how)["message"]
    assert (cut["content"], cut["reasoning"]) == (None, "Where")


def test_marks_that_are_special_tokens_are_read(tmp_path: Path) -> None:
    """Other special tokens stay hidden."""
    model = write_model("llama", tmp_path)
    config = json.loads((model / "tokenizer_config.json").read_text())
    config["additional_special_tokens"].append("<|python_tag|>")
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(ModelInfo.load(model))
    assert "<|python_tag|>" in tokenizer.special
    said = 'a<|start_header_id|><|python_tag|>{"name": "f", "parameters": {"a": 1}}'
    message = whole(tokenizer, said, reading={"tools": Llama3()})["message"]
    assert message["content"] == "a"
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}


def test_calls_are_looked_for_where_tools_are_given_and_the_model_marks_calls(
    tmp_path: Path,
) -> None:
    model = write_model("qwen3", tmp_path)
    (model / "chat_template.jinja").write_text(TEMPLATES["qwen3_tools"])
    front = frontend(model)

    def most(**fields: Any) -> int:
        return render(front, user("x"), **fields).output.reading.most

    assert most() == 0 and render(front, user("x")).output.reading.tools is None
    assert most(tools=TOOLS) == most(tools=TOOLS, tool_choice="auto") == 128
    assert most(tools=TOOLS, parallel_tool_calls=False) == 1
    assert most(tools=TOOLS, tool_choice="none") == 0
    for choice in ("auto", "required", {"type": "function", "function": {"name": "weather"}}):
        output = render(front, user("x"), tools=TOOLS, tool_choice=choice).output
        assert output.reading.only == (choice != "auto")


def test_tools_on_a_template_that_has_none_are_refused(tmp_path: Path) -> None:
    model = write_model("qwen3", tmp_path)
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    front = frontend(model)
    ways: list[tuple[dict[str, Any], str]] = [
        ({}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
    ]
    for fields, param in ways:
        with pytest.raises(InvalidRequest) as caught:
            render(front, user("x"), tools=TOOLS, **fields)
        assert (caught.value.param, caught.value.code) == (param, "unsupported_field")
    assert render(front, user("x"), tools=TOOLS, tool_choice="none").output.reading.most == 0


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "function"}], "tools[0].function"),
        ([*TOOLS, {"function": {"name": "a b"}}], "tools[1].function.name"),
        ([{"function": {"name": ""}}], "tools[0].function.name"),
        ([{"function": {"name": 5}}], "tools[0].function.name"),
        ([{"function": {"name": "f", "parameters": [1]}}], "tools[0].function.parameters"),
        (
            [{"function": {"name": "f", "parameters": {"type": "array"}}}],
            "tools[0].function.parameters",
        ),
        ([{"function": {"name": "f", "strict": "x"}}], "tools[0].function.strict"),
        ([{"type": "custom", "function": {"name": "f"}}], "tools[0].type"),
    ],
)
def test_definitions_are_checked(tools: Any, param: str) -> None:
    choices: list[dict[str, Any]] = [{}, {"tool_choice": "none"}]
    for choice in choices:
        with pytest.raises(InvalidRequest) as caught:
            tool_use(chat(tools=tools, **choice))
        assert caught.value.param == param


def test_only_allowed_tools_are_shown_and_called() -> None:
    both = [*TOOLS, {"type": "function", "function": {"name": "halt"}}]

    def use(mode: str, name: str) -> ToolUse:
        named = {"type": "function", "function": {"name": name}}
        allowed = {"mode": mode, "tools": [named]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        return tool_use(chat(tools=both, tool_choice=choice))

    assert [f.name for f in use("auto", "halt").functions] == ["halt"]
    assert use("required", "halt").shown == (both[1],)
    assert [use(mode, "halt").forced for mode in ("auto", "required")] == [False, True]
    with pytest.raises(InvalidRequest) as caught:
        use("sometimes", "halt")
    assert caught.value.param == "tool_choice.allowed_tools.mode"
    with pytest.raises(InvalidRequest, match="'stop'"):
        use("auto", "stop")


def test_a_template_or_a_flag_says_how_answers_are_read(tmp_path: Path) -> None:
    model = write_model("qwen3", tmp_path)
    template = "{{ messages[0].content }}{{ tools }}<think>\n{# </think> #}"
    (model / "chat_template.jinja").write_text(template)
    reading = render(frontend(model), user("x"), tools=TOOLS).output.reading
    assert isinstance(reading.tools, Llama3) and reading.tools.tools.keys() == {"weather"}
    assert reading.thinking == Thinking() and reading.inside
    flags: dict[str, Any] = {"tool_call_parser": "mistral", "reasoning_parser": "none"}
    reading = render(frontend(model, **flags), user("x"), tools=TOOLS).output.reading
    assert isinstance(reading.tools, TOOL_FORMATS["mistral"]) and reading.thinking is None
    plain = render(frontend(model, **flags), user("x")).output.reading
    assert plain.reader() is None


OWN = "{{ messages[0].content }}"
GLM = "{{ tools | tojson }}{{ messages[0].content }}<tool_call>f<arg_key>k</arg_key></tool_call>"
THINKS = "{{ messages[0].content }}<think>\n"


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    """Of a model whose own template knows no tools, and a named one GLM's."""
    model = write_model("qwen3", tmp_path_factory.mktemp("named"))
    (model / "chat_template.jinja").write_text(OWN)
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "agent.jinja").write_text(GLM)
    return frontend(model, trust_request_chat_template=True)


@pytest.mark.parametrize("fields", [{"chat_template": GLM}, {"user_template": GLM},
                                    {"template_key": "agent"}])  # fmt: skip
def test_the_template_in_use_decides_how_calls_are_read(
    fields: dict[str, Any], front: Frontend
) -> None:
    required = {"tools": TOOLS, "tool_choice": "required"}
    assert isinstance(render(front, user("x"), tools=TOOLS, **fields).output.reading.tools, GLMForm)
    forced = render(front, user("x"), **required, **fields).generate.sampling.grammar
    assert "weather" in forced and "parameters" not in forced
    with pytest.raises(InvalidRequest) as caught:
        render(front, user("x"), tools=TOOLS)
    assert caught.value.param == "tools"


def test_a_request_s_template_without_tools_refuses_them(tmp_path: Path) -> None:
    model = write_model("qwen3", tmp_path)
    (model / "chat_template.jinja").write_text(TEMPLATES["qwen3_tools"])
    front = frontend(model, trust_request_chat_template=True)
    assert render(front, user("x"), tools=TOOLS).output.reading.tools is not None
    with pytest.raises(InvalidRequest) as caught:
        render(front, user("x"), tools=TOOLS, chat_template=OWN)
    assert caught.value.param == "tools"


def test_the_template_in_use_decides_whether_there_is_reasoning(
    front: Frontend, tmp_path: Path
) -> None:
    assert render(front, user("x")).output.reading.thinking is None
    reading = render(front, user("x"), chat_template=THINKS).output.reading
    assert reading.thinking == Thinking() and reading.inside
    model = write_model("qwen3", tmp_path)
    (model / "chat_template.jinja").write_text(THINKS)
    thinking = frontend(model, trust_request_chat_template=True)
    assert render(thinking, user("x")).output.reading.inside
    assert render(thinking, user("x"), chat_template=OWN).output.reading.thinking is None
