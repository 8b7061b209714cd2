"""Answers with tool calls in them, whole and streamed."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.openai_answers import encode
from protocol.types import RequestOutput
from services.frontend.answering import Answering
from services.frontend.model_info import ModelInfo
from services.frontend.spec import OutputSpec
from services.frontend.tokenizer import Tokenizer
from tests.support.chat_templates import TEMPLATES
from tests.support.frontend_helpers import frontend, render, user, write_model

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
    return OutputSpec("r", "m", True, [1, 2], max_tool_calls=9, **fields)


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


def streamed(tokenizer: Tokenizer, text: str) -> list[dict[str, Any]]:
    """The choices of all chunks."""
    first, *rest = outputs(tokenizer, text)

    async def run() -> bytes:
        answering = Answering(described(), tokenizer)
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
    assert choice["finish_reason"] == "length"
    assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["halt"]
    assert choice["message"]["content"] == "\n" + BERN[:-20]


def test_a_forced_call_that_is_cut_short_is_no_content(tokenizer: Tokenizer) -> None:
    choice = whole(tokenizer, BERN[:-20], "length", calls_only=True)
    assert choice["finish_reason"] == "length"
    assert not choice["message"]["content"] and "tool_calls" not in choice["message"]


def test_a_stop_string_comes_first(tokenizer: Tokenizer) -> None:
    choice = whole(tokenizer, f"a\n{BERN}", stop=("weather",))
    assert choice["message"]["content"] == 'a\n<tool_call>\n{"name": "'
    assert choice["finish_reason"] == "stop"


def test_a_stream_with_calls(tokenizer: Tokenizer) -> None:
    """Clients join what they are sent by index, as OpenAI's own library does."""
    text, calls, finish = "", {}, []
    chunks = streamed(tokenizer, said := f"I look.\n{BERN}\n{HALT}")
    assert len(chunks) > len(tokenizer.encode(said))  # none is kept waiting for a call's end
    for choice in chunks:
        delta = choice["delta"]
        text += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            assert call["index"] not in calls and call["type"] == "function" and call["id"]
            calls[call["index"]] = call["function"]
        finish.append(choice["finish_reason"])
    assert text == "I look."
    assert calls == {
        0: {"name": "weather", "arguments": WEATHER[1]},
        1: {"name": "halt", "arguments": "{}"},
    }
    assert finish[-1] == "tool_calls" and set(finish[:-1]) == {None}


def test_calls_are_looked_for_where_tools_are_given_and_the_model_marks_calls(
    tmp_path: Path,
) -> None:
    model = write_model("qwen3", tmp_path)
    (model / "chat_template.jinja").write_text(TEMPLATES["qwen3_tools"])
    front = frontend(model)

    def most(**fields: Any) -> int:
        return render(front, user("x"), **fields).output.max_tool_calls

    assert most() == 0
    assert most(tools=TOOLS) == most(tools=TOOLS, tool_choice="auto") == 128
    assert most(tools=TOOLS, parallel_tool_calls=False) == 1
    assert most(tools=TOOLS, tool_choice="none") == 0
    for choice in ("auto", "required", {"type": "function", "function": {"name": "weather"}}):
        output = render(front, user("x"), tools=TOOLS, tool_choice=choice).output
        assert output.calls_only == (choice != "auto")
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    front = frontend(model)
    assert most(tools=TOOLS) == 0
