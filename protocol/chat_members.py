"""Members of the objects within a chat request."""

from __future__ import annotations

from protocol.request_fields import Members, RowsOf

_C = RowsOf("chat")
_TEMPLATE = "Further members reach the chat template."
_ECHOED = "Comes back with an answer."
_PROVIDER = _C.harmless("provider_specific_fields", _ECHOED, {"a": 1})
_CACHED = _C.harmless("cache_control", "Prefixes are found by their content.", {"type": "x"})

MESSAGE = Members(
    "messages[]",
    (
        _C.works("role", "system, developer, user, assistant, tool or function.", "user"),
        _C.works("content", "A text, or parts; null where the assistant only calls tools.", "Hi"),
        _C.works("name", "Handed to the chat template.", "n"),
        _C.works("tool_calls", "What the assistant called.", []),
        _C.works("tool_call_id", "Which call a tool answers.", "c"),
        _C.works("refusal", "Handed to the chat template.", "no"),
        _C.works("reasoning_content", "What the assistant thought; for the chat template.", "t"),
        _C.works("reasoning", "As reasoning_content.", "t"),
        _C.works("thinking", "As reasoning_content.", "t"),
        _C.refused("function_call", "use tool_calls.", {"name": "f", "arguments": "{}"}),
        _C.refused("audio", "there are no earlier answers in audio.", {"id": "a"}),
        _C.harmless("annotations", _ECHOED, []),
        _C.harmless("citations", _ECHOED, []),
        _C.harmless("finish_reason", _ECHOED, "stop"),
        _C.harmless("id", _ECHOED, "m"),
        _C.harmless("index", _ECHOED, 0),
        _C.harmless("logprobs", _ECHOED, {"content": []}),
        _C.harmless("parsed", "The content, as a client has read it.", {"a": 1}),
        _C.harmless("reasoning_details", "reasoning_content is read.", [{"type": "x"}]),
        _C.harmless("status", _ECHOED, "completed"),
        _C.harmless("stop_reason", _ECHOED, 5),
        _C.harmless("thinking_blocks", "reasoning_content is read.", [{"type": "thinking"}]),
        _C.harmless("token_ids", _ECHOED, [5]),
        _CACHED,
        _PROVIDER,
    ),
    _TEMPLATE,
)
_SIZES = "use mm_processor_kwargs."
PART = Members(
    "messages[].content[]",
    (
        _C.works("type", "text, image_url, video_url, input_audio, audio_url, …", "text"),
        _C.works("text", "The text.", "Hi"),
        _C.works("refusal", "The text of a part of this type.", "no"),
        _C.works("image_url", "A picture.", {"url": "data:,"}),
        _C.works("video_url", "A clip.", {"url": "data:,"}),
        _C.works("audio_url", "A piece of audio.", {"url": "data:,"}),
        _C.works("input_audio", "A piece of audio itself.", {"data": "", "format": "wav"}),
        _C.works("image_embeds", "Metadata of a picture whose embeddings uuid names.", {}),
        _C.works("video_embeds", "Metadata of a clip whose embeddings uuid names.", {}),
        _C.works("audio_embeds", "Metadata of audio whose embeddings uuid names.", {}),
        _C.works("uuid", "The client's name of the medium.", "u"),
        _C.refused("image", "media have a type and a URL.", "data:,"),
        _C.refused("video", "media have a type and a URL.", "data:,"),
        _C.refused("audio", "media have a type and a URL.", "data:,"),
        _C.refused("min_pixels", _SIZES, 3136),
        _C.refused("max_pixels", _SIZES, 65536),
        _C.refused("fps", _SIZES, 1),
        _C.harmless("annotations", _ECHOED, []),
        _C.harmless("citations", _ECHOED, []),
        _C.harmless("id", _ECHOED, "p"),
        _C.harmless("index", _ECHOED, 0),
        _C.harmless("logprobs", _ECHOED, []),
        _CACHED,
        _PROVIDER,
    ),
    f"{_TEMPLATE} TranslateGemma's reads source_lang_code.",
)
MEDIA_URL = Members(
    "messages[].content[].image_url, video_url, audio_url",
    (
        _C.works("url", "http, https or data.", "data:,"),
        _C.harmless("detail", "The model's processor decides over the resolution.", "low"),
        _C.harmless("format", "Formats are told by the bytes.", "image/png"),
    ),
)
INPUT_AUDIO = Members(
    "messages[].content[].input_audio",
    (
        _C.works("data", "base64 of a file.", ""),
        _C.works("format", "Of the file, as wav.", "wav"),
    ),
)
CALL = Members(
    "messages[].tool_calls[]",
    (
        _C.works("id", "The name that the tool's message repeats.", "c"),
        _C.works("type", "function.", "function"),
        _C.works("function", "What was called.", {"name": "f"}),
        _C.harmless("index", _ECHOED, 0),
        _C.harmless("extra_content", _ECHOED, {"a": 1}),
        _CACHED,
        _PROVIDER,
    ),
    _TEMPLATE,
)
CALLED = Members(
    "messages[].tool_calls[].function",
    (
        _C.works("name", "The function.", "f"),
        _C.works("arguments", "JSON text of an object, or the object; null: none.", "{}"),
        _C.harmless("parsed_arguments", "The arguments, as a client has read them.", {"a": 1}),
        _PROVIDER,
    ),
    _TEMPLATE,
)
TOOL = Members(
    "tools[]",
    (
        _C.works("type", "function.", "function"),
        _C.works("function", "What the model may call.", {"name": "f"}),
    ),
    _TEMPLATE,
)
FUNCTION = Members(
    "tools[].function",
    (
        _C.works("name", "1 to 64 letters, digits, '_', '-' or '.'.", "f"),
        _C.works("description", "Handed to the chat template.", "d"),
        _C.works("parameters", "A JSON schema of the arguments.", {"type": "object"}),
        _C.works("strict", "true: what cannot be enforced in the schema is an error.", True),
    ),
    _TEMPLATE,
)
TOOL_CHOICE = Members(
    "tool_choice",
    (
        _C.works("type", "function or allowed_tools.", "function"),
        _C.works("function", "name: the function that must be called.", {"name": "f"}),
        _C.works("allowed_tools", "mode: auto or required; tools: by name.", {"mode": "auto"}),
    ),
)
RESPONSE_FORMAT = Members(
    "response_format",
    (
        _C.works("type", "text, json_object or json_schema.", "text"),
        _C.works("json_schema", "What a json_schema has.", {"schema": {}}),
        _C.works("schema", "A JSON schema, for json_object.", {}),
    ),
)
JSON_SCHEMA = Members(
    "response_format.json_schema",
    (
        _C.works("schema", "The JSON schema.", {}),
        _C.works("name", "Of the schema; nothing depends on it.", "n"),
        _C.works("strict", "true: what cannot be enforced in the schema is an error.", True),
        _C.harmless("description", "The model sees the messages only.", "d"),
    ),
)
STREAM_OPTIONS = Members(
    "stream_options",
    (
        _C.works("include_usage", "Usage at the stream's end.", True),
        _C.works("continuous_usage_stats", "Usage in every chunk.", True),
        _C.works("include_obfuscation", "Nothing is padded.", False),
    ),
)
CHAT_MEMBERS = (
    MESSAGE, PART, MEDIA_URL, INPUT_AUDIO, CALL, CALLED, TOOL, FUNCTION, TOOL_CHOICE,
    RESPONSE_FORMAT, JSON_SCHEMA, STREAM_OPTIONS,
)  # fmt: skip
