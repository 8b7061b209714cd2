"""Bodies of OpenAI requests: types are checked and the field at fault is named."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from protocol.openai import decode_chat, decode_completion
from protocol.openai_answers import ChatCompletionChunk, encode_event

MESSAGES: list[Any] = [{"role": "user", "content": "Hello"}]


def encode(**fields: Any) -> bytes:
    return msgspec.json.encode({"model": "m", "messages": MESSAGES, **fields})


def test_a_full_request_keeps_its_fields() -> None:
    request = decode_chat(
        encode(
            max_completion_tokens=5,
            temperature=0,
            stop="x",
            seed=-7,
            stream=True,
            stream_options={"include_usage": True},
            tools=[{"type": "function", "function": {"name": "f"}}],
            tool_choice={"type": "function", "function": {"name": "f"}},
            logit_bias={"7": -1},
            ec_transfer_params={"hash": {"x": 1}},
            chat_template_kwargs={"a": [1, None]},
            response_format={"type": "json_object"},
        )
    )
    assert (request.max_completion_tokens, request.temperature, request.stop) == (5, 0, "x")
    assert request.stream_options is not None and request.stream_options.include_usage
    assert request.seed == -7 and request.logit_bias == {"7": -1}
    assert request.chat_template_kwargs == {"a": [1, None]}
    assert request.ec_transfer_params == {"hash": {"x": 1}}


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1], [2, 3]], []])
def test_prompts_have_four_forms(prompt: Any) -> None:
    body = msgspec.json.encode({"prompt": prompt})
    assert decode_completion(body).prompt == prompt


def content(part: Any) -> dict[str, Any]:
    return {"messages": [*MESSAGES, {"role": "user", "content": [part]}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role"),
        (content({"text": "x"}), "messages[1].content[0].type"),
        (content({"type": "text", "text": 1}), "messages[1].content[0].text"),
        (content({"type": "image_url", "image_url": {}}), "messages[1].content[0].image_url.url"),
        (content({"type": "image_url", "image_url": 3}), "messages[1].content[0].image_url"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": [1]}, "stop[0]"),
        ({"logit_bias": {"1": "x"}}, "logit_bias"),
        ({"stream": 1}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"tools": {}}, "tools"),
        ({"n": "two"}, "n"),
    ],
)
def test_wrong_types_name_their_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_chat(encode(**fields))
    assert caught.value.param == param


def test_missing_fields_are_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_chat(b"{}")
    assert caught.value.param == "messages"
    with pytest.raises(InvalidRequest) as caught:
        decode_completion(b'{"model": "m"}')
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"messages": [NaN]}',
        b'{"model": "\xff"}',
        b'{"messages": "\\ud800"}',
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b', "messages": []}',
        b'{"messages": [], "tools": [' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"]}",
    ],
)
def test_malformed_json_is_told_as_such(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_chat(body)
    assert (caught.value.status, caught.value.code) == (400, "malformed_json")


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b'"messages"'])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_chat(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
FIELDS = ("messages", "model", "stop", "n", "tools", "logit_bias", "max_tokens", "stream_options")


@settings(max_examples=100, deadline=None, database=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_json_gives_a_request_or_a_clear_error(fields: dict[str, Any]) -> None:
    try:
        decode_chat(msgspec.json.encode(fields))
    except InvalidRequest as error:
        assert error.status == 400 and error.message


@settings(max_examples=80, deadline=None, database=None)
@given(st.binary(max_size=60))
def test_any_bytes_give_a_request_or_a_clear_error(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_chat(body)


def test_events_are_server_sent_events() -> None:
    chunk = ChatCompletionChunk(id="a", created=1, model="m", choices=[])
    event = encode_event(chunk)
    assert event.startswith(b"data: {") and event.endswith(b"}\n\n")
    body = msgspec.json.decode(event.removeprefix(b"data: "))
    assert body == {
        "id": "a",
        "created": 1,
        "model": "m",
        "object": "chat.completion.chunk",
        "choices": [],
    }
