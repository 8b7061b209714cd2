"""Dynamo's `nvext` in the words of OpenAI's requests, as its releases from 0.5 to 1.5 have it.

A member that would change the answer and is not honoured is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from protocol.decoding import unknown_parameter
from protocol.errors import InvalidRequest

NVEXT = "nvext"
_SAME = frozenset(
    {
        "ignore_eos", "top_k", "min_p", "repetition_penalty", "cache_salt", "guided_json",
        "guided_regex", "guided_grammar", "guided_choice",
    }
)  # fmt: skip
_GREEDY, _SESSION = "greed_sampling", "session_control"

# Without any effect on the answer's text: placement, order, hints of speed.
_HARMLESS = frozenset(
    {
        "backend_instance_id", "prefill_worker_id", "decode_worker_id", "dp_rank",
        "prefill_dp_rank", "agent_hints", "agent_context", "request_timestamp_ms",
        "guided_decoding_backend", "router",
    }
)  # fmt: skip

# What to do instead; null, false and nothing ask for nothing.
_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "use_raw_prompt": "send the prompt to /v1/completions",
        "token_data": "send token ids as the prompt of /v1/completions",
        "annotations": "use return_token_ids, usage and the header Server-Timing",
        "extra_fields": "use the header Server-Timing of the answer, and return_token_ids",
        "max_thinking_tokens": "use max_tokens",
    }
)


def fields_of_nvext(nvext: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an OpenAI request that ask for what `nvext` asks for, unchecked;
    `InvalidRequest` names a member that is not honoured."""
    fields = {name: nvext[name] for name in nvext if name in _SAME and nvext[name] is not None}
    known = _SAME | _HARMLESS | {_GREEDY, _SESSION}
    for name, value in nvext.items():
        if name not in known:
            _check_idle(name, value)
    if _is_greedy(nvext.get(_GREEDY)):
        fields["temperature"] = 0
    if session := nvext.get(_SESSION):
        fields["session_id"] = session.get("session_id") if isinstance(session, dict) else session
    return fields


def member_of(field: str) -> str:
    """The member that the OpenAI field comes from."""
    return {"temperature": _GREEDY, "session_id": f"{_SESSION}.session_id"}.get(field, field)


def _is_greedy(value: Any) -> bool:
    if value is not None and not isinstance(value, bool):
        param = f"{NVEXT}.{_GREEDY}"
        raise InvalidRequest(
            f"Invalid type for '{param}': expected `bool | null`", param=param, code="invalid_type"
        )
    return bool(value)


def _check_idle(name: str, value: Any) -> None:
    param = f"{NVEXT}.{name}"
    if name not in _REFUSED:
        raise unknown_parameter(param)
    if value:
        raise InvalidRequest(
            f"{param} is not supported: {_REFUSED[name]}",
            param=param,
            code="unsupported_parameter",
        )
