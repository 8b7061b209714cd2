"""OpenAI's Responses API: requests become chats, gains become items and events."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest
from protocol.responses import ResponsesRequest, decode_responses
from services.frontend.answers.answering import Answering
from services.frontend.model_info import ModelInfo
from services.frontend.parsing.json_call import Hermes
from services.frontend.parsing.reading import Reading, Thinking
from services.frontend.responses.answer import ResponseAnswer
from services.frontend.responses.chats import as_of_response, chat_of_response
from services.frontend.spec import OutputSpec
from services.frontend.tokenizer import Tokenizer
from services.http.response_store import ResponseStore
from tests.support.answer_steps import TEXT_AMONG_CALLS, outputs, steps
from tests.support.frontend_helpers import write_model

Json = dict[str, Any]
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}


def asked(given: Any = "Hello", **fields: Any) -> ResponsesRequest:
    return decode_responses(msgspec.json.encode({"input": given, **fields}))


def chat(given: Any = "Hello", before: Any = (), **fields: Any) -> ChatCompletionRequest:
    return chat_of_response(asked(given, **fields), before)


def messages(request: ChatCompletionRequest) -> list[Json]:
    """Messages without what is left out."""
    plain: list[Json] = msgspec.to_builtins(request.messages)
    return [{k: v for k, v in message.items() if v is not None} for message in plain]


def test_a_text_is_a_users_message_after_the_instructions() -> None:
    request = chat(instructions="Be brief.", max_output_tokens=5, reasoning={"effort": "low"})
    assert messages(request) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    assert (request.max_completion_tokens, request.reasoning_effort) == (5, "low")


def test_vllms_parameters_are_the_chats() -> None:
    request = chat(stop_token_ids=[5], session_id="s", include_reasoning=False)
    assert (request.stop_token_ids, request.session_id) == ([5], "s")
    assert request.include_reasoning is False and chat(include_reasoning=None).include_reasoning


def test_one_turn_of_the_model_is_one_message() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs", "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
    ]
    user, said, result = messages(chat(items[1:], before=items[:1]))
    assert user["content"][0]["text"] == "Weather?"
    assert said["reasoning_content"] == "Hm." and said["content"][0]["text"] == "I look."
    assert [call["id"] for call in said["tool_calls"]] == ["a", "b"]
    assert result == {"role": "tool", "tool_call_id": "a", "content": "rain"}


def test_pictures_tools_and_forms_are_the_chats() -> None:
    part = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto"}
    form = {"type": "json_schema", "name": "x", "schema": {}, "strict": True}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [TOOL]}
    request = chat(
        [{"role": "user", "content": [part]}],
        tools=[TOOL],
        tool_choice={"type": "function", "name": "weather"},
        text={"format": form},
    )
    (sent,) = messages(request)[0]["content"]
    assert (sent["type"], sent["image_url"]["url"]) == ("image_url", part["image_url"])
    function = {key: value for key, value in TOOL.items() if key != "type"}
    assert request.tools == [{"type": "function", "function": function}]
    assert request.tool_choice == {"type": "function", "function": {"name": "weather"}}
    schema = {"name": "x", "schema": {}, "strict": True}
    assert request.response_format == {"type": "json_schema", "json_schema": schema}
    choice = chat(tools=[TOOL], tool_choice=allowed).tool_choice
    assert isinstance(choice, dict) and choice["allowed_tools"]["tools"] == [
        {"type": "function", "function": {"name": "weather"}}
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_tool_calls": 1}, "max_tool_calls"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"given": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"given": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"given": [{"role": "user"}]}, "input[0].content"),
        (
            {"given": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"given": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        ({"given": [{"type": "function_call", "name": "f"}]}, "input[0].arguments"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": 5}}, "text.format"),
    ],
)
def test_what_is_not_served_is_refused_by_field(fields: Json, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(fields.pop("given", "x"), **fields)
    assert caught.value.param == param


def test_errors_of_the_chat_name_the_fields_of_the_response() -> None:
    for chats, name in (
        ("messages[1].content[0].image_url.url", "input"),
        ("max_completion_tokens", "max_output_tokens"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("tools[0].function.name", "tools[0].name"),
        (None, None),
    ):
        assert as_of_response(InvalidRequest("x", param=chats)).param == name
        said = as_of_response(InvalidRequest(f"{chats}: wrong", param=chats))
        assert said.message == f"{name}: wrong"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(ModelInfo.load(write_model("qwen3", tmp_path_factory.mktemp("m"))))


SAID = (
    "<think>\nWhere?\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
)


def answering(tokenizer: Tokenizer) -> Answering:
    reading = Reading(Hermes(), Thinking(), most=9)
    return Answering(OutputSpec("r", "m", True, [1, 2], reading=reading), tokenizer)


def whole(tokenizer: Tokenizer, text: str = SAID, finish: str = "stop", **fields: Any) -> Json:
    answer = ResponseAnswer(asked(**fields), "resp_1", "m")
    said = steps(outputs(tokenizer, text, finish))
    return asyncio.run(answer.whole(answering(tokenizer), said))


def streamed(tokenizer: Tokenizer, text: str = SAID) -> list[Json]:
    first, *rest = outputs(tokenizer, text, "stop")
    answer = ResponseAnswer(asked(), "resp_1", "m")

    async def run() -> bytes:
        events = answer.events(answering(tokenizer), [first], steps(rest))
        return b"".join([data async for data in events])

    told = []
    for event in asyncio.run(run()).split(b"\n\n")[:-1]:
        name, _, data = event.partition(b"\n")
        told.append(json.loads(data.removeprefix(b"data: ")))
        assert name.removeprefix(b"event: ").decode() == told[-1]["type"]
    return told


def test_a_whole_response(tokenizer: Tokenizer) -> None:
    response = whole(tokenizer, tools=[TOOL], metadata={"a": "b"})
    thought, message, call = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Where?"}]
    assert message["content"][0]["text"] == "I look." and message["role"] == "assistant"
    assert (call["name"], call["arguments"]) == ("weather", '{"city": "Bern"}')
    assert call["call_id"].startswith("call_") and call["id"].startswith("fc_")
    assert {item["status"] for item in response["output"]} == {"completed"}
    assert (response["status"], response["metadata"]) == ("completed", {"a": "b"})
    usage = response["usage"]
    assert usage["input_tokens"] == 2 and usage["output_tokens"] == len(tokenizer.encode(SAID))
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]


@pytest.mark.parametrize("each", [1, 7, 23, 999])
def test_items_stand_in_the_order_in_which_the_model_said_them(
    each: int, tokenizer: Tokenizer
) -> None:
    said = outputs(tokenizer, TEXT_AMONG_CALLS, "stop", each)
    answer = ResponseAnswer(asked(), "resp_1", "m")
    response = asyncio.run(answer.whole(answering(tokenizer), steps(said)))
    told = [
        item["content"][0]["text"].strip() if item["type"] == "message" else item["arguments"]
        for item in response["output"]
    ]
    assert told == ["I look.", '{"n": 1}', "Again.", '{"n": 2}']


def test_reasoning_is_left_out_where_it_is_not_wanted(tokenizer: Tokenizer) -> None:
    reading = Reading(Hermes(), Thinking(), most=9)
    spec = OutputSpec("r", "m", True, [1, 2], reading=reading, show_reasoning=False)
    answer = ResponseAnswer(asked(), "resp_1", "m")
    said = steps(outputs(tokenizer, SAID, "stop"))
    response = asyncio.run(answer.whole(Answering(spec, tokenizer), said))
    assert [item["type"] for item in response["output"]] == ["message", "function_call"]


def test_a_response_that_is_cut_says_so(tokenizer: Tokenizer) -> None:
    response = whole(tokenizer, SAID[:-25], "length")
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [i["status"] for i in response["output"]] == ["completed", "completed", "incomplete"]
    (empty,) = whole(tokenizer, " ", "stop")["output"]
    assert empty["type"] == "message"


def test_events_add_up_to_the_response(tokenizer: Tokenizer) -> None:
    told = streamed(tokenizer)
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"] for event in told[:2]] == ["response.created", "response.in_progress"]
    last = told[-1]
    assert last["type"] == "response.completed"
    items: dict[int, Json] = {}
    texts: dict[int, str] = {}
    for event in told[2:-1]:
        number = event["output_index"]
        kind = event["type"]
        if kind == "response.output_item.added":
            items[number] = event["item"]
            texts[number] = ""
            assert event["item"]["status"] == "in_progress"
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[number]["id"]
            texts[number] += event["delta"]
        elif kind.endswith("_text.done"):
            assert event["text"] == texts[number]
        elif kind.endswith("arguments.done"):
            assert event["arguments"] == texts[number]
        elif kind == "response.output_item.done":
            items[number] = event["item"]
    assert list(items.values()) == last["response"]["output"]
    assert texts == {0: "Where?", 1: "I look.", 2: '{"city": "Bern"}'}
    assert sum(e["type"] == "response.function_call_arguments.delta" for e in told) > 2


def test_the_store_is_bounded_and_each_clients_own() -> None:
    store = ResponseStore(4000)

    def put(name: str, size: int = 100, tenant: str = "a") -> None:
        store.put({"id": name, "output": [{"text": "x" * size}]}, [{"role": "user"}], [], tenant)

    put("one")
    stored = store.get("one", "a")
    assert stored is not None and store.get("one", "b") is None
    assert [*map(len, msgspec.json.decode(stored.items))] == [1, 1]
    for name in range(20):
        put(str(name))
        assert store.get("one", "a") is not None  # what is used stays
    assert store.get("0", "a") is None and len(store) < 20
    assert not store.delete("one", "b") and store.delete("one", "a")
    assert not store.delete("one", "a")
    before = len(store)
    put("huge", 5000)
    assert store.get("huge", "a") is None and len(store) == before
