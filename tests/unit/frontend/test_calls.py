"""Calls of earlier turns as templates read them."""

import pytest

from protocol.chat_messages import ChatMessage, FunctionCall, ToolCall
from protocol.errors import InvalidRequest, PayloadTooLarge
from protocol.json_size import MOST_VALUES
from services.frontend.prompts import calls
from services.frontend.prompts.calls import tool_call
from services.frontend.prompts.messages import read_messages


def turn(*arguments: str) -> ChatMessage:
    made = [ToolCall(FunctionCall("f", one)) for one in arguments]
    return ChatMessage("assistant", tool_calls=made)


def test_arguments_are_objects() -> None:
    said = tool_call(ToolCall(FunctionCall("f", '{"a": [1e300, 2]}'), id="c"), "x")
    assert said["function"] == {"name": "f", "arguments": {"a": [1e300, 2]}} and said["id"] == "c"
    for bad in ("[1]", "{", "7"):
        with pytest.raises(InvalidRequest) as caught:
            tool_call(ToolCall(FunctionCall("f", bad)), "x")
        assert caught.value.param == "x.function.arguments"


def test_arguments_of_all_calls_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are texts in the JSON of the request, which is bounded by itself."""
    monkeypatch.setattr(calls, "ANY_OBJECT", None)  # nothing is decoded
    each = 1000
    heavy = '{"a":[' + ",".join(["[]"] * each) + "]}"
    with pytest.raises(PayloadTooLarge, match=f"more than {MOST_VALUES} objects"):
        read_messages([turn(heavy) for _ in range(MOST_VALUES // each + 1)], ())
