"""Anthropic's Messages API: requests become chats, gains become content blocks."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from protocol.anthropic import decode_messages
from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest
from services.frontend.answers.answering import Answering
from services.frontend.anthropic.answer import MessageAnswer, message_error
from services.frontend.anthropic.chats import as_of_message, chat_of_message
from services.frontend.model_info import ModelInfo
from services.frontend.parsing.json_call import Hermes
from services.frontend.parsing.reading import Reading, Thinking
from services.frontend.spec import OutputSpec
from services.frontend.tokenizer import Tokenizer
from tests.support.answer_steps import TEXT_AMONG_CALLS, outputs, steps
from tests.support.frontend_helpers import write_model

Json = dict[str, Any]
SAID = (
    "<think>\nWhere?\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
)

FORM = {"type": "json_schema", "schema": {"type": "object"}}


def chat(messages: list[Json], **fields: Any) -> ChatCompletionRequest:
    body = {"messages": messages, "max_tokens": 9, **fields}
    return chat_of_message(decode_messages(msgspec.json.encode(body)))


def user(*blocks: Json) -> Json:
    return {"role": "user", "content": [*blocks]}


def plain(request: ChatCompletionRequest) -> list[Json]:
    messages: list[Json] = msgspec.to_builtins(request.messages)
    return [{k: v for k, v in message.items() if v is not None} for message in messages]


def test_a_thread_is_refused_so_that_clients_go_on_without() -> None:
    with pytest.raises(InvalidRequest, match="thread is not supported") as caught:
        chat([user({"type": "text", "text": "Hi"})], thread={"type": "create"})
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert message_error(caught.value)["error"]["details"] == details
    assert "details" not in message_error(InvalidRequest("no", param="model"))["error"]


def test_a_conversation_with_a_tool_and_a_picture() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AA"}
    call = {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Bern"}}
    request = chat(
        [
            user({"type": "image", "source": source}, {"type": "text", "text": "Weather?"}),
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, call]},
            user(
                {"type": "tool_result", "tool_use_id": "t", "content": "rain"},
                {"type": "text", "text": "And now?"},
            ),
        ],
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        tools=[{"name": "weather", "input_schema": {"type": "object"}}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=["x"],
        thinking={"type": "disabled"},
    )
    system, asked, said, result, again = plain(request)
    assert system == {"role": "system", "content": "Be brief."}
    assert asked["content"][0]["image_url"]["url"] == "data:image/png;base64,AA"
    assert said["reasoning_content"] == "Hm."
    assert said["tool_calls"][0]["function"]["arguments"] == {"city": "Bern"}
    assert result == {"role": "tool", "tool_call_id": "t", "content": "rain"}
    assert again["content"][0]["text"] == "And now?"
    assert (request.tool_choice, request.parallel_tool_calls) == ("required", False)
    assert (request.max_completion_tokens, request.stop) == (9, ["x"])
    assert request.chat_template_kwargs == {"enable_thinking": False}
    named = chat([user()], tool_choice={"type": "tool", "name": "f"}).tool_choice
    assert named == {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [user({"type": "document"})]}, "messages[0].content[0].type"),
        (
            {"messages": [user({"type": "image", "source": {"type": "file"}})]},
            "messages[0].content[0].source.type",
        ),
        ({"tools": [{"name": "bash", "type": "bash_20250124"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ],
)
def test_what_is_not_served_is_refused_by_field(fields: Json, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(fields.pop("messages", []), **fields)
    assert caught.value.param is not None
    assert caught.value.param.replace("[...]", "[0]") == param


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(ModelInfo.load(write_model("qwen3", tmp_path_factory.mktemp("m"))))


def answering(tokenizer: Tokenizer, **fields: Any) -> Answering:
    reading = Reading(Hermes(), Thinking(), most=9)
    return Answering(OutputSpec("r", "m", True, [1, 2], reading=reading, **fields), tokenizer)


def whole(tokenizer: Tokenizer, text: str = SAID, finish: str = "stop", **fields: Any) -> Json:
    said = steps(outputs(tokenizer, text, finish))
    return asyncio.run(MessageAnswer("msg_1", "m").whole(answering(tokenizer, **fields), said))


def test_a_whole_message(tokenizer: Tokenizer) -> None:
    message = whole(tokenizer)
    thought, text, call = message["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "Where?")
    assert text == {"type": "text", "text": "I look."}
    assert (call["name"], call["input"]) == ("weather", {"city": "Bern"})
    assert message["stop_reason"] == "tool_use" and message["stop_sequence"] is None
    assert message["usage"]["input_tokens"] == 2


@pytest.mark.parametrize("each", [1, 7, 23, 999])
def test_blocks_stand_in_the_order_in_which_the_model_said_them(
    each: int, tokenizer: Tokenizer
) -> None:
    said = outputs(tokenizer, TEXT_AMONG_CALLS, "stop", each)
    message = asyncio.run(MessageAnswer("msg_1", "m").whole(answering(tokenizer), steps(said)))
    shown = [(block.get("text", "").strip(), block.get("input")) for block in message["content"]]
    assert shown == [("I look.", None), ("", {"n": 1}), ("Again.", None), ("", {"n": 2})]


def test_why_a_message_ends(tokenizer: Tokenizer) -> None:
    assert whole(tokenizer, "Yes.")["stop_reason"] == "end_turn"
    assert whole(tokenizer, "Yes.", "length")["stop_reason"] == "max_tokens"
    stopped = whole(tokenizer, "Yes. No.", stop=(".",))
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", ".")
    cut = whole(tokenizer, SAID[:-20], "length")["content"][-1]
    assert cut["input"].keys() == {"partial_json"}


@pytest.mark.parametrize(
    ("given", "chats", "name"),
    [
        ({}, "max_completion_tokens", "max_tokens"),
        ({}, "stop", "stop_sequences"),
        ({}, "stop_token_ids", "stop_token_ids"),
        ({}, "tools[1].function.name", "tools[1].name"),
        ({}, "tools[1].function.parameters", "tools[1].input_schema"),
        ({"output_format": FORM}, "response_format.json_schema.schema", "output_format.schema"),
        ({"output_config": {"format": FORM}}, "response_format", "output_config.format"),
        ({}, "messages[0].content", "messages[0].content"),
    ],
)
def test_errors_of_the_chat_name_the_fields_of_the_message(
    given: Json, chats: str, name: str
) -> None:
    """A message's error has its text alone to name a field."""
    body = {"messages": [user()], "max_tokens": 9, **given}
    request = decode_messages(msgspec.json.encode(body))
    error = as_of_message(InvalidRequest(f"{chats} is wrong", param=chats), request)
    assert (error.param, error.message) == (name, f"{name} is wrong")
    other = as_of_message(InvalidRequest("a stop is wrong", param=chats), request)
    assert other.message == "a stop is wrong"


def test_events_add_up_to_the_message(tokenizer: Tokenizer) -> None:
    first, *rest = outputs(tokenizer, SAID, "stop")

    async def run() -> bytes:
        events = MessageAnswer("msg_1", "m").events(answering(tokenizer), [first], steps(rest))
        return b"".join([data async for data in events])

    told = []
    for event in asyncio.run(run()).split(b"\n\n")[:-1]:
        name, _, data = event.partition(b"\n")
        told.append(json.loads(data.removeprefix(b"data: ")))
        assert name.removeprefix(b"event: ").decode() == told[-1]["type"]
    start, *middle, delta, stop = told
    assert (start["type"], stop["type"]) == ("message_start", "message_stop")
    assert start["message"]["content"] == [] and start["message"]["usage"]["input_tokens"] == 2
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    blocks: list[Json] = []
    texts: list[str] = []
    for event in middle:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            texts.append("")
        elif event["type"] == "content_block_delta":
            kind, text = event["delta"].values()
            texts[-1] += text
            assert kind in ("thinking_delta", "text_delta", "input_json_delta")
        assert event["index"] == len(blocks) - 1
    assert texts == ["Where?", "I look.", '{"city": "Bern"}']
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
    assert [event["type"] for event in middle].count("content_block_stop") == 3
