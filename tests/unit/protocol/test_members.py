"""Members of the objects within a request: each does what its row says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from protocol import anthropic, chat_messages, responses
from protocol import anthropic_members as anthropics
from protocol import chat_members as chats
from protocol import responses_members as responding
from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, StreamOptions, decode_chat
from protocol.request_fields import Members, RequestField
from services.frontend import tool_use
from services.frontend.anthropic.chats import chat_of_message
from services.frontend.grammars import requested as grammar
from services.frontend.prompts.messages import read_messages
from services.frontend.responses.chats import chat_of_response

Json = dict[str, Any]
TURN = {"role": "user", "content": "Hi"}
FORM = {"type": "json_schema", "schema": {}}


@dataclass(frozen=True)
class Place:
    """Where objects of one kind stand: `path` of the first one, `request` around an object, and an
    object that is legal there."""

    members: Members
    path: str
    request: Callable[[Json], Json]
    base: Json


def of_chat(fields: Json) -> ChatCompletionRequest:
    """The chat, all of whose objects have been looked at."""
    chat = decode_chat(msgspec.json.encode({"messages": [TURN], **fields}))
    tool_use.tool_use(chat)
    grammar.grammar_of(chat)
    return chat


def of_message(fields: Json) -> ChatCompletionRequest:
    body = {"messages": [TURN], "max_tokens": 4, **fields}
    return chat_of_message(anthropic.decode_messages(msgspec.json.encode(body)))


def of_response(fields: Json) -> ChatCompletionRequest:
    return chat_of_response(responses.decode_responses(msgspec.json.encode(fields)), [])


def said(part: Json) -> Json:
    return {"messages": [{"role": "user", "content": [part]}]}


def called(call: Json) -> Json:
    return {"messages": [TURN, {"role": "assistant", "tool_calls": [call]}]}


def block(one: Json) -> Json:
    role = "assistant" if one["type"] in ("thinking", "redacted_thinking", "tool_use") else "user"
    return {"messages": [{"role": role, "content": [one]}]}


F: Json = {"type": "function", "function": {"name": "f"}}
PART, BLOCK = "messages[0].content[0]", "messages[0].content[0]"
CHAT = (
    Place(chats.MESSAGE, "messages[0]", lambda m: {"messages": [m]}, TURN),
    Place(chats.PART, PART, said, {"type": "text", "text": "x"}),
    Place(
        chats.MEDIA_URL,
        f"{PART}.image_url",
        lambda source: said({"type": "image_url", "image_url": source}),
        {"url": "data:,"},
    ),
    Place(
        chats.INPUT_AUDIO,
        f"{PART}.input_audio",
        lambda source: said({"type": "input_audio", "input_audio": source}),
        {"data": "", "format": "wav"},
    ),
    Place(chats.CALL, "messages[1].tool_calls[0]", called, F),
    Place(
        chats.CALLED,
        "messages[1].tool_calls[0].function",
        lambda f: called({"function": f}),
        {"name": "f"},
    ),
    Place(chats.TOOL, "tools[0]", lambda tool: {"tools": [tool]}, F),
    Place(
        chats.FUNCTION, "tools[0].function", lambda f: {"tools": [{"function": f}]}, F["function"]
    ),
    Place(
        chats.TOOL_CHOICE, "tool_choice", lambda choice: {"tools": [F], "tool_choice": choice}, F
    ),
    Place(
        chats.RESPONSE_FORMAT, "response_format", lambda f: {"response_format": f}, {"type": "text"}
    ),
    Place(
        chats.JSON_SCHEMA,
        "response_format.json_schema",
        lambda schema: {"response_format": {"type": "json_schema", "json_schema": schema}},
        {"schema": {}},
    ),
    Place(
        chats.STREAM_OPTIONS,
        "stream_options",
        lambda options: {"stream": True, "stream_options": options},
        {},
    ),
)
ITEMS: Mapping[str, Json] = {
    "message": TURN,
    "function_call": {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    "function_call_output": {"type": "function_call_output", "call_id": "c", "output": "x"},
    "reasoning": {"type": "reasoning", "summary": []},
}
TOOL = {"type": "function", "name": "f"}
RESPONSES = (
    *(
        Place(responding.ITEMS[kind], "input[0]", lambda item: {"input": [item]}, item)
        for kind, item in ITEMS.items()
    ),
    Place(
        responding.PART,
        "input[0].content[0]",
        lambda part: {"input": [{"role": "user", "content": [part]}]},
        {"type": "input_text", "text": "x"},
    ),
    Place(responding.TOOL, "tools[0]", lambda tool: {"input": "x", "tools": [tool]}, TOOL),
    Place(
        responding.TOOL_CHOICE,
        "tool_choice",
        lambda choice: {"input": "x", "tools": [TOOL], "tool_choice": choice},
        TOOL,
    ),
    Place(responding.EFFORT, "reasoning", lambda r: {"input": "x", "reasoning": r}, {}),
    Place(responding.TEXT, "text", lambda text: {"input": "x", "text": text}, {}),
    Place(
        responding.FORMAT,
        "text.format",
        lambda form: {"input": "x", "text": {"format": form}},
        {"type": "json_schema", "name": "n", "schema": {}},
    ),
)
BLOCKS: Mapping[str, Json] = {
    "text": {"type": "text", "text": "x"},
    "image": {"type": "image", "source": {"type": "url", "url": "data:,"}},
    "thinking": {"type": "thinking", "thinking": "x"},
    "redacted_thinking": {"type": "redacted_thinking", "data": "x"},
    "tool_use": {"type": "tool_use", "id": "t", "name": "f", "input": {}},
    "tool_result": {"type": "tool_result", "tool_use_id": "t", "content": "x"},
}
MESSAGES = (
    Place(anthropics.MESSAGE, "messages[0]", lambda m: {"messages": [m]}, TURN),
    *(Place(anthropics.BLOCKS[kind], BLOCK, block, one) for kind, one in BLOCKS.items()),
    Place(
        anthropics.SOURCE,
        f"{BLOCK}.source",
        lambda source: block({"type": "image", "source": source}),
        {"type": "url", "url": "data:,"},
    ),
    Place(anthropics.TOOL, "tools[0]", lambda tool: {"tools": [tool]}, {"name": "f"}),
    Place(anthropics.TOOL_CHOICE, "tool_choice", lambda c: {"tool_choice": c}, {"type": "auto"}),
    Place(anthropics.ENABLED, "thinking", lambda t: {"thinking": t}, {"type": "disabled"}),
    Place(anthropics.OUTPUT, "output_config", lambda c: {"output_config": c}, {}),
    Place(anthropics.FORMAT, "output_format", lambda form: {"output_format": form}, FORM),
)
PLACES = (*CHAT, *RESPONSES, *MESSAGES)
READ: tuple[tuple[tuple[Place, ...], Callable[[Json], ChatCompletionRequest]], ...] = (
    (CHAT, of_chat),
    (RESPONSES, of_response),
    (MESSAGES, of_message),
)


def read(place: Place, **members: Any) -> ChatCompletionRequest:
    (reader,) = (reader for places, reader in READ if place in places)
    return reader(place.request({**place.base, **members}))


def effect(chat: ChatCompletionRequest) -> tuple[ChatCompletionRequest, str]:
    """The chat and the grammar that its format becomes."""
    return msgspec.structs.replace(chat, response_format=None), grammar.grammar_of(chat)


def name_of(place: Place) -> str:
    return f"{place.members.rows[0].routes[0]}-{place.members.path}"


def rows(state: str) -> list[Any]:
    return [
        pytest.param(place, row, id=f"{name_of(place)}-{row.name}")
        for place in PLACES
        for row in place.members.rows
        if row.state == state
    ]


def test_every_object_has_a_place_here() -> None:
    tables = (chats.CHAT_MEMBERS, responding.RESPONSES_MEMBERS, anthropics.MESSAGES_MEMBERS)
    assert {m.path for table in tables for m in table} == {p.members.path for p in PLACES}


@pytest.mark.parametrize(
    ("members", "struct"),
    [
        (chats.MESSAGE, chat_messages.ChatMessage),
        (chats.PART, chat_messages.ContentPart),
        (chats.MEDIA_URL, chat_messages.MediaURL),
        (chats.INPUT_AUDIO, chat_messages.InputAudio),
        (chats.CALL, chat_messages.ToolCall),
        (chats.CALLED, chat_messages.FunctionCall),
        (chats.STREAM_OPTIONS, StreamOptions),
        (responding.EFFORT, responses.Reasoning),
        (responding.TEXT, responses.TextOptions),
        (anthropics.MESSAGE, anthropic.MessageTurn),
        (anthropics.TOOL, anthropic.Tool),
        (anthropics.TOOL_CHOICE, anthropic.ToolChoice),
        (anthropics.ENABLED, anthropic.Thinking),
        (anthropics.OUTPUT, anthropic.OutputConfig),
    ],
)
def test_what_works_is_what_the_struct_has(members: Members, struct: type[msgspec.Struct]) -> None:
    honoured = {row.name for row in members.rows if row.state == "works"}
    assert honoured == {*struct.__struct_fields__} - {"others"}


@pytest.mark.parametrize(("place", "row"), rows("harmless"))
def test_what_is_harmless_changes_nothing(place: Place, row: RequestField) -> None:
    given, null, without = (
        effect(read(place, **members))
        for members in ({row.name: row.example}, {row.name: None}, {})
    )
    assert given == null == without


@pytest.mark.parametrize(("place", "row"), rows("refused"))
def test_what_is_refused_is_named(place: Place, row: RequestField) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(place, **{row.name: row.example})
    assert (caught.value.param, caught.value.code) == (
        f"{place.path}.{row.name}",
        "unsupported_parameter",
    )
    for idle in (None, *row.neutral):
        read(place, **{row.name: idle})


@pytest.mark.parametrize("place", PLACES, ids=name_of)
def test_what_has_no_row_is_named_or_reaches_the_template(place: Place) -> None:
    if place.members.further:
        assert "'colour': 'blue'" in str(msgspec.to_builtins(read(place, colour="blue")))
        return
    with pytest.raises(InvalidRequest) as caught:
        read(place, colour="blue")
    assert (caught.value.param, caught.value.code) == (f"{place.path}.colour", "unknown_parameter")


def test_null_is_as_good_as_leaving_an_unknown_member_out() -> None:
    for place in PLACES:
        if place.members not in (chats.STREAM_OPTIONS, chats.TOOL, chats.FUNCTION):
            given, without = effect(read(place, colour=None)), effect(read(place))
            if place.members is chats.TOOL_CHOICE:
                given[0].tool_choice = without[0].tool_choice = None
            assert given == without


def test_an_answer_comes_back_whole() -> None:
    """As OpenAI's, Anthropic's and LiteLLM's clients write out what they got."""
    call = {"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": None}}
    message = {"role": "assistant", "content": None, "refusal": None, "annotations": [],
               "audio": None, "function_call": None, "tool_calls": [call], "reasoning": None,
               "provider_specific_fields": {"a": 1}}  # fmt: skip
    (_, found) = of_chat({"messages": [TURN, message]}).messages
    assert found.tool_calls is not None and found.others is None
    assert found.tool_calls[0].function.arguments is None
    text = {"type": "output_text", "text": "x", "annotations": [], "logprobs": []}
    item = {"type": "message", "id": "m", "status": "completed", "role": "assistant",
            "content": [text], "phase": None}  # fmt: skip
    thought: Json = {"type": "reasoning", "id": "r", "status": None, "summary": [], "content": None,
               "encrypted_content": None}  # fmt: skip
    assert len(of_response({"input": [thought, item]}).messages) == 1


def test_a_failed_tool_reaches_the_template() -> None:
    failed = {"type": "tool_result", "tool_use_id": "t", "content": "x", "is_error": True}
    assert of_message(block(failed)).messages[0].others == {"is_error": True}
    with pytest.raises(InvalidRequest) as caught:
        of_message(block({**failed, "is_error": 1}))
    assert caught.value.param == f"{BLOCK}.is_error"


def test_the_template_gets_what_has_no_row() -> None:
    call = {"function": {"name": "f", "note": 1}, "origin": "x"}
    turns = [{**TURN, "task": "sum"}, {"role": "assistant", "tool_calls": [call]}]
    asked, answered = read_messages(of_chat({"messages": turns}).messages, ()).messages
    assert asked == {"role": "user", "content": "Hi", "task": "sum"}
    (found,) = answered["tool_calls"]
    function = {"name": "f", "arguments": {}, "note": 1}
    assert found == {"type": "function", "function": function, "origin": "x"}
