"""What OpenAI says of a body that is not what it must be: message, param, code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from protocol.decoding import field_of, unknown_field, unknown_parameter
from protocol.errors import InvalidRequest

_BOUND = re.compile(r"Expected `(int|float)` (<=?|>=?) ")
_CODES: Mapping[str, str] = MappingProxyType(
    {
        "int >": "integer_below_min_value",
        "int <": "integer_above_max_value",
        "float >": "decimal_below_min_value",
        "float <": "decimal_above_max_value",
    }
)


def refusal_of(error: msgspec.ValidationError, inside: str = "") -> InvalidRequest:
    """`error` as a refusal that names the field at fault, after `inside`."""
    said = str(error)
    if (unknown := unknown_field(error)) is not None:
        return unknown_parameter(inside + unknown)
    param, what = inside + (field_of(error) or ""), said.partition(" - at `")[0]
    if "missing required field" in said:
        return InvalidRequest(
            f"Missing required parameter: '{param}'",
            param=param or None,
            code="missing_required_parameter",
        )
    code = _code_of(what)
    about = "Invalid type for" if code == "invalid_type" else "Invalid"
    named = f"{about} '{param}'" if param else "Invalid request"
    return InvalidRequest(f"{named}: {what[:1].lower()}{what[1:]}", param=param or None, code=code)


def _code_of(what: str) -> str:
    if (bound := _BOUND.match(what)) is not None:
        return _CODES[f"{bound[1]} {bound[2][0]}"]
    return "invalid_type" if ", got `" in what else InvalidRequest.code
