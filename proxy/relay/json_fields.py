"""JSON objects of clients, and back."""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.decoding import ANY_OBJECT
from protocol.errors import InvalidRequest

# Of so short a body no number can take long to decode (`finite`), and most say one or two.
_SHORT = 1 << 10  # bytes
_DECODER = msgspec.json.Decoder(dict[str, Any])
_ENCODER = msgspec.json.Encoder()


def object_of(data: bytes) -> dict[str, Any]:
    """`InvalidRequest` unless it is a JSON object."""
    decoder = _DECODER if len(data) <= _SHORT else ANY_OBJECT
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise InvalidRequest("the request must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"malformed JSON: {error}", code="malformed_json") from None
    except RecursionError:
        raise too_deep() from None


def json_of(value: Any) -> bytes:
    # What could be decoded may still be too deep for encoding, which begins further down the stack.
    try:
        return _ENCODER.encode(value)
    except RecursionError:
        raise too_deep() from None


def too_deep() -> InvalidRequest:
    return InvalidRequest("the JSON is nested too deeply", code="malformed_json")
