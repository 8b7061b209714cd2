"""Members of the objects within a request in Anthropic's form."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from protocol.request_fields import Members, RowsOf

_M = RowsOf("messages")
_ECHOED = "Comes back with an answer."
_CACHED = _M.harmless("cache_control", "Prefixes are found by their content.", {"type": "x"})
_BLOCK = "messages[].content[] of the type "

MESSAGE = Members(
    "messages[]",
    (
        _M.works("role", "user, assistant or system.", "user"),
        _M.works("content", "A text, or blocks.", "Hi"),
        _M.harmless("id", _ECHOED, "m"),
        _M.harmless("type", _ECHOED, "message"),
        _M.harmless("model", _ECHOED, "m"),
        _M.harmless("stop_reason", _ECHOED, "end_turn"),
        _M.harmless("stop_sequence", _ECHOED, "x"),
        _M.harmless("usage", _ECHOED, {"input_tokens": 1}),
    ),
)
TEXT = Members(
    f"{_BLOCK}text, system[]",
    (
        _M.works("type", "text.", "text"),
        _M.works("text", "The text.", "Hi"),
        _M.harmless("citations", _ECHOED, []),
        _CACHED,
    ),
)
IMAGE = Members(
    f"{_BLOCK}image",
    (
        _M.works("type", "image.", "image"),
        _M.works("source", "Where the picture is.", {"type": "url", "url": "data:,"}),
        _CACHED,
    ),
)
SOURCE = Members(
    "messages[].content[].source",
    (
        _M.works("type", "base64 or url.", "url"),
        _M.works("media_type", "Of base64: image/png, …", "image/png"),
        _M.works("data", "Of base64: the file.", ""),
        _M.works("url", "Of url: http, https or data.", "data:,"),
    ),
)
THINKING = Members(
    f"{_BLOCK}thinking",
    (
        _M.works("type", "thinking.", "thinking"),
        _M.works("thinking", "What the model thought; for the chat template.", "t"),
        _M.harmless("signature", "Reasoning is not signed here.", "s"),
        _CACHED,
    ),
)
REDACTED = Members(
    f"{_BLOCK}redacted_thinking",
    (
        _M.works("type", "redacted_thinking.", "redacted_thinking"),
        _M.harmless("data", "Cannot be read here; no answer has any.", "x"),
        _CACHED,
    ),
)
CALL = Members(
    f"{_BLOCK}tool_use",
    (
        _M.works("type", "tool_use.", "tool_use"),
        _M.works("id", "The name that the call's result repeats.", "c"),
        _M.works("name", "The function.", "f"),
        _M.works("input", "An object with the arguments.", {}),
        _M.harmless("caller", _ECHOED, {"type": "direct"}),
        _CACHED,
    ),
)
RESULT = Members(
    f"{_BLOCK}tool_result",
    (
        _M.works("type", "tool_result.", "tool_result"),
        _M.works("tool_use_id", "The call that it answers.", "c"),
        _M.works("content", "A text, or blocks.", "rain"),
        _M.works("is_error", "true is handed to the chat template.", True),
        _CACHED,
    ),
)
BLOCKS: Mapping[str, Members] = MappingProxyType(
    {
        "text": TEXT,
        "image": IMAGE,
        "thinking": THINKING,
        "redacted_thinking": REDACTED,
        "tool_use": CALL,
        "tool_result": RESULT,
    }
)
TOOL = Members(
    "tools[]",
    (
        _M.works("name", "1 to 64 letters, digits, '_', '-' or '.'.", "f"),
        _M.works("input_schema", "A JSON schema of the arguments.", {"type": "object"}),
        _M.works("description", "Handed to the chat template.", "d"),
        _M.works("type", "custom.", "custom"),
        _M.works("strict", "true: what cannot be enforced in the schema is an error.", True),
        _M.refused("defer_loading", "the model sees every tool.", True, False),
        _M.refused("input_examples", "write them into the description.", [{}], []),
        _M.refused("allowed_callers", "the client runs the tools.", ["x"], ["direct"], []),
        _M.harmless("eager_input_streaming", "Arguments are streamed as they come.", True),
        _CACHED,
    ),
)
TOOL_CHOICE = Members(
    "tool_choice",
    (
        _M.works("type", "auto, any, tool or none.", "auto"),
        _M.works("name", "Of tool: the function.", "f"),
        _M.works("disable_parallel_tool_use", "true: one call at most.", True),
    ),
)
ENABLED = Members(
    "thinking",
    (
        _M.works("type", "enabled, disabled or adaptive: for the chat template.", "disabled"),
        _M.harmless("budget_tokens", "Use max_tokens.", 1024),
        _M.harmless("display", "All reasoning is told.", "summarized"),
    ),
)
OUTPUT = Members(
    "output_config",
    (
        _M.works("effort", "Handed to the chat template.", "low"),
        _M.works("format", "What the answer keeps to.", {"type": "json_schema", "schema": {}}),
        _M.harmless("task_budget", "Use max_tokens.", {"type": "tokens", "total": 9}),
    ),
)
FORMAT = Members(
    "output_config.format, output_format",
    (
        _M.works("type", "json_schema.", "json_schema"),
        _M.works("schema", "A JSON schema.", {}),
        _M.harmless("name", "Nothing depends on it.", "n"),
        _M.harmless("strict", "A schema is always enforced as a strict one.", True),
    ),
)
MESSAGES_MEMBERS = (
    MESSAGE, *BLOCKS.values(), SOURCE, TOOL, TOOL_CHOICE, ENABLED, OUTPUT, FORMAT,
)  # fmt: skip
