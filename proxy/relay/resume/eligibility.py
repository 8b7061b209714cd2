"""Which streams another worker can resume so that a client does not see where one broke.

Greedy decoding makes the same tokens after the same tokens, so it is enough to hand on prompt and
tokens, unless something counts from where the answer began (penalties, `min_tokens`, grammars),
reads its text (stop strings, tools, reasoning), or tells more of it than its text (log
probabilities). Media would have to be handed on too: streams that have any cannot be resumed. What
is not named here may be any of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from proxy.relay.bodies import TOKEN_IDS, RequestBody

_ANY_VALUE = frozenset(
    (
        "model", "messages", "stream", "temperature", "top_p", "top_k", "min_p", "seed",
        "max_tokens", "max_completion_tokens", "stop_token_ids", "ignore_eos",
        "include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens",
        "add_generation_prompt", "continue_final_message", "add_special_tokens", "documents",
        "chat_template", "chat_template_kwargs", "truncate_prompt_tokens", "truncation_side",
        "priority", "cache_salt", "user", "metadata", "session_id",
    )
)  # fmt: skip
_NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "n": (1,),
        "best_of": (1,),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "echo": (False,),
        "stop": ("", []),
        "tools": ([],),
        "tool_choice": ("none",),
        "response_format": ({"type": "text"},),
        "logit_bias": ({},),
        "bad_words": ([],),
        "min_tokens": (0,),
        "presence_penalty": (0,),
        "frequency_penalty": (0,),
        "repetition_penalty": (1,),
        "use_beam_search": (False,),
        "include_reasoning": (True,),
        TOKEN_IDS: (True,),
    }
)
_STREAM_OPTIONS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {"include_usage": (True, False), "continuous_usage_stats": (False,)}
)


def can_be_resumed(request: RequestBody) -> bool:
    """Whether a chat request's stream is one of those."""
    fields = request.fields
    return (
        request.stream
        and fields.get("temperature") == 0
        and all(_is_harmless(name, value) for name, value in fields.items())
        and _is_text(fields.get("messages"))
    )


def _is_harmless(name: str, value: Any) -> bool:
    # `RequestBody.decode_body` adds this field to the client's own bytes: unless it is true there,
    # they must not have it at all.
    if name in _ANY_VALUE or (value is None and name != TOKEN_IDS):
        return True
    if name == "stream_options":
        return isinstance(value, dict) and all(
            option is None or option in _STREAM_OPTIONS.get(key, ())
            for key, option in value.items()
        )
    return value in _NEUTRAL.get(name, ())


def _is_text(messages: Any) -> bool:
    return isinstance(messages, list) and all(
        isinstance(message, dict) and _is_text_content(message.get("content"))
        for message in messages
    )


def _is_text_content(content: Any) -> bool:
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("type") == "text" for part in content)
    return content is None or isinstance(content, str)
