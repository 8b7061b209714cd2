"""Members of the objects within a request for a response."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from protocol.request_fields import Members, RowsOf

_R = RowsOf("responses")
_ECHOED = "Comes back with an answer."
_ITEM = (
    _R.works("type", "message, function_call, function_call_output or reasoning.", "message"),
    _R.harmless("id", _ECHOED, "i"),
    _R.harmless("status", _ECHOED, "completed"),
    _R.harmless("created_by", _ECHOED, "u"),
    _R.harmless("provider_specific_fields", _ECHOED, {"a": 1}),
)
MESSAGE = Members(
    "input[] of the type message",
    (
        *_ITEM,
        _R.works("role", "As in chats.", "user"),
        _R.works("content", "A text, or parts.", "Hi"),
        _R.harmless("phase", _ECHOED, "final_answer"),
    ),
)
CALL = Members(
    "input[] of the type function_call",
    (
        *_ITEM,
        _R.works("call_id", "The name that the call's output repeats.", "c"),
        _R.works("name", "The function.", "f"),
        _R.works("arguments", "JSON text of an object.", "{}"),
    ),
)
OUTPUT = Members(
    "input[] of the type function_call_output",
    (
        *_ITEM,
        _R.works("call_id", "The call that it answers.", "c"),
        _R.works("output", "A text, or parts.", "rain"),
    ),
)
REASONING = Members(
    "input[] of the type reasoning",
    (
        *_ITEM,
        _R.works("content", "Parts: what the model thought; for the chat template.", []),
        _R.works("summary", "As content, where there is none.", []),
        _R.harmless("encrypted_content", "Cannot be read here; no answer has any.", "x"),
    ),
)
ITEMS: Mapping[str, Members] = MappingProxyType(
    {
        "message": MESSAGE,
        "function_call": CALL,
        "function_call_output": OUTPUT,
        "reasoning": REASONING,
    }
)
PART = Members(
    "input[].content[], input[].output[]",
    (
        _R.works("type", "input_text, output_text, input_image, refusal, …", "input_text"),
        _R.works("text", "The text.", "Hi"),
        _R.works("refusal", "The text of a part of this type.", "no"),
        _R.works("image_url", "http, https or data.", "data:,"),
        _R.refused("file_id", "this server holds no files.", "f"),
        _R.harmless("detail", "The model's processor decides over the resolution.", "low"),
        _R.harmless("annotations", _ECHOED, []),
        _R.harmless("logprobs", _ECHOED, []),
        _R.harmless("cache_control", "Prefixes are found by their content.", {"type": "x"}),
        _R.harmless("provider_specific_fields", _ECHOED, {"a": 1}),
    ),
)
TOOL = Members(
    "tools[]",
    (
        _R.works("type", "function.", "function"),
        _R.works("name", "1 to 64 letters, digits, '_', '-' or '.'.", "f"),
        _R.works("description", "Handed to the chat template.", "d"),
        _R.works("parameters", "A JSON schema of the arguments.", {"type": "object"}),
        _R.works("strict", "true: what cannot be enforced in the schema is an error.", True),
        _R.refused("defer_loading", "the model sees every tool.", True, False),
        _R.harmless("cache_control", "Prefixes are found by their content.", {"type": "x"}),
    ),
)
TOOL_CHOICE = Members(
    "tool_choice",
    (
        _R.works("type", "function or allowed_tools.", "function"),
        _R.works("name", "The function that must be called.", "f"),
        _R.works("mode", "Of allowed_tools: auto or required.", "auto"),
        _R.works("tools", "Of allowed_tools: functions by name.", []),
    ),
)
EFFORT = Members(
    "reasoning",
    (
        _R.works("effort", "Handed to the chat template.", "low"),
        _R.harmless("summary", "All reasoning is told.", "auto"),
        _R.harmless("generate_summary", "As summary.", "auto"),
    ),
)
TEXT = Members(
    "text",
    (
        _R.works("format", "What the answer keeps to.", {"type": "text"}),
        _R.works("verbosity", "Handed to the chat template.", "low"),
    ),
)
FORMAT = Members(
    "text.format",
    (
        _R.works("type", "text, json_object or json_schema.", "text"),
        _R.works("schema", "A JSON schema.", {}),
        _R.works("name", "Of the schema; nothing depends on it.", "n"),
        _R.works("strict", "true: what cannot be enforced in the schema is an error.", True),
        _R.harmless("description", "The model sees the input only.", "d"),
    ),
)
RESPONSES_MEMBERS = (*ITEMS.values(), PART, TOOL, TOOL_CHOICE, EFFORT, TEXT, FORMAT)
