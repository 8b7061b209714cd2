"""What another process sent, or an error: of the caller's choice, or one that tells a client what
is wrong as OpenAI does, by message, param and code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from protocol.bounds import INT64_MAX
from protocol.errors import InvalidRequest
from protocol.json_size import check_json

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_SHOWN = 64  # characters of the caller's own
_MAX_DEPTH = 32  # of JSON that is passed on
_D = TypeVar("_D")
_T = TypeVar("_T")
_S = TypeVar("_S", bound=msgspec.Struct)


def finite(literal: str) -> float:
    """A number in JSON, for `float_hook` of decoders that take any JSON: msgspec's own way takes
    15 microseconds for one like 1e300, as many as for a hundred bytes of other JSON."""
    value = float(literal)
    if -math.inf < value < math.inf:
        return value
    raise ValueError("Number out of range")


ANY_JSON = msgspec.json.Decoder(Any, float_hook=finite)
ANY_OBJECT = msgspec.json.Decoder(dict[str, Any], float_hook=finite)


def decoded(
    data: bytes | bytearray | memoryview,
    type: type[_T],
    *,
    fail: Callable[[str], Exception],
) -> _T:
    """`data` as `type`; data with a fault raises `fail(what)`.

    Faults are JSON that is malformed or not of that type, bytes that are not UTF-8, and nesting
    deeper than the decoder goes.
    """
    try:
        return msgspec.json.decode(data, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise fail(str(error)) from None
    except RecursionError:
        raise fail("nested too deep") from None


def field_of(error: msgspec.ValidationError) -> str | None:
    """The field a validation error speaks of, the required one that is missing or the one that is
    unknown: msgspec ends its message in `$.path`."""
    if (unknown := unknown_field(error)) is not None:
        return unknown
    # msgspec has no field of its own for it.
    _, found, path = str(error).rpartition("`$.")
    # A key of an object is shown as [...]: the field that holds the object is at fault.
    parent = path.rstrip("`").partition("[...]")[0] if found else None
    _, missing, rest = str(error).partition("missing required field `")
    if not missing:
        return parent
    name = rest.partition("`")[0]
    return f"{parent}.{name}" if parent else name


def unknown_field(error: msgspec.ValidationError) -> str | None:
    """The path of the field that an object must not have, if it is that which is wrong."""
    found = _UNKNOWN.match(str(error))
    return ".".join(part for part in (found[2], found[1]) if part) if found else None


def unknown_parameter(name: str) -> InvalidRequest:
    """What OpenAI says of a field that it does not have, whose name may be of any length."""
    name = name[:_SHOWN]
    return InvalidRequest(
        f"Unrecognized request argument supplied: {name}", param=name, code="unknown_parameter"
    )


def named_field(error: msgspec.ValidationError) -> InvalidRequest:
    return InvalidRequest(str(error), param=field_of(error))


def accepted(
    decode: Callable[[_D], _T],
    data: _D,
    kind: str = "JSON",
    refusal: Callable[[msgspec.ValidationError], InvalidRequest] = named_field,
) -> _T:
    """What `decode` makes of a request in some `kind` of encoding; `InvalidRequest` if that is
    malformed, or `refusal` names the field that is not what it must be, `PayloadTooLarge` for JSON
    that would take long to decode."""
    code = f"malformed_{kind.lower()}"
    if kind == "JSON" and isinstance(data, bytes | bytearray | memoryview | str):
        check_json(data)
    try:
        return decode(data)
    except msgspec.ValidationError as error:
        raise refusal(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"malformed {kind}: {error}", code=code) from None
    except RecursionError:
        raise InvalidRequest(f"the {kind} is nested too deep", code=code) from None


def within_bounds(value: _S) -> _S:
    """`value`, made in this process, as if it had been decoded; `InvalidRequest` names the field
    that is out of range."""
    return accepted(lambda fields: msgspec.convert(fields, type(value)), msgspec.to_builtins(value))


def converted(value: Any, kind: type[_T], param: str, inside: str = "") -> _T:
    """`value`, of the field `param`, as `kind`; `InvalidRequest` names the field in it that is not
    what it must be, after `inside`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        field = field_of(error)
        where = f"{inside or param + '.'}{field}" if field else param
        if unknown_field(error) is not None:
            raise unknown_parameter(where) from None
        raise InvalidRequest(f"{param}: {error}", param=where) from None


def check_opaque(value: Any, name: str) -> None:
    """`InvalidRequest` if a JSON value that is passed on as it is has an integer of more than 64
    bits, or is nested too deep for a message."""
    # No recursion: JSON of a client may be nested at will.
    stack = [(value, 0)]
    while stack:
        part, depth = stack.pop()
        if depth > _MAX_DEPTH:
            raise InvalidRequest(f"{name} is nested too deep", param=name)
        if isinstance(part, dict):
            stack += [(entry, depth + 1) for entry in part.values()]
        elif isinstance(part, list):
            stack += [(entry, depth + 1) for entry in part]
        elif type(part) is int and not -INT64_MAX - 1 <= part <= INT64_MAX:
            raise InvalidRequest(f"{name} has an integer of more than 64 bits", param=name)


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
