"""What proxies do with fields of requests beside what their rows say, by dialect.

A proxy that renders requests (dialect `tokens`) does what the rows say, as workers do; one that
relays them (dialect `openai`) passes fields on as they are. What either does otherwise is here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from protocol.request_fields import RequestField

_FIRST_TOKEN = "1 for prefill workers; decode workers get the client's."
_LATER = "for decode workers alone."
_KEYS = "and, without a master's model, part of what finds the worker with a cached prefix."
_ENCODERS = "to encode workers too."
_WHOLE = "and keeps a prompt that is scored on one worker, which has all of it."

TOKENS: Mapping[str, str] = MappingProxyType(
    {
        "kv_transfer_params": "left out: the proxy places requests itself.",
        "ec_transfer_params": "left out, unless --allow-media-references is set.",
    }
)
OPENAI: Mapping[str, str] = MappingProxyType(
    {
        "messages": "passed on; media are sent to encode workers first, and by name to the others.",
        "model": "passed on, or the worker's name in place of one of the proxy's own; and chooses"
        " among the models of a fleet.",
        "stream": "passed on to decode workers; must be true, false or null.",
        "stream_options": f"passed on, {_LATER}",
        "max_tokens": f"passed on; {_FIRST_TOKEN}",
        "max_completion_tokens": f"passed on; {_FIRST_TOKEN}",
        "n": f"passed on, {_LATER}",
        "best_of": f"passed on, {_LATER}",
        "min_tokens": f"passed on, {_LATER}",
        "echo": f"passed on, {_WHOLE}",
        "prompt_logprobs": f"passed on, {_WHOLE}",
        "return_token_ids": "passed on; asked for, and left out of the answer, where a stream may"
        " have to be resumed on another worker.",
        "priority": "passed on, and orders the proxy's own queue.",
        "tools": f"passed on, {_KEYS}",
        "cache_salt": f"passed on, {_KEYS}",
        "chat_template": f"passed on, {_KEYS}",
        "chat_template_kwargs": f"passed on, {_KEYS}",
        "mm_processor_kwargs": f"passed on, {_ENCODERS}",
        "media_io_kwargs": f"passed on, {_ENCODERS}",
        "request_id": "passed on; the header alone names the request at the proxy.",
        "session_id": "passed on; the header alone keeps a session on its workers.",
        "kv_transfer_params": "left out: prefill's handles take its place.",
        "ec_transfer_params": "left out, unless --allow-media-references is set; then passed on,"
        " with what encode workers said beside it.",
    }
)
"""Of chats and completions."""
AGENTS: Mapping[str, str] = MappingProxyType(
    {
        "model": OPENAI["model"],
        "stream": "passed on; must be true, false or null.",
        "priority": OPENAI["priority"],
        "request_id": OPENAI["request_id"],
        "session_id": OPENAI["session_id"],
        "previous_response_id": "passed on, to the worker that has that response; 400 where the"
        " proxy has --workers 2 or more.",
        "store": "passed on; the worker that answers keeps the response.",
        "ec_transfer_params": OPENAI["ec_transfer_params"],
    }
)
"""Of responses and messages, which go to one worker."""


def with_dialects(rows: Iterable[RequestField]) -> tuple[RequestField, ...]:
    """Rows with what proxies do with their fields, where these work."""
    return tuple(_told(row) if row.state == "works" else row for row in rows)


def _told(row: RequestField) -> RequestField:
    name = row.name
    relayed = AGENTS if row.routes[0] in ("responses", "messages") else OPENAI
    return dataclasses.replace(row, tokens=TOKENS.get(name, ""), openai=relayed.get(name, ""))
