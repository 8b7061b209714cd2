"""JSON that another process sent, or an error of the caller's choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

_T = TypeVar("_T")


def decoded(
    data: bytes | bytearray | memoryview,
    type: type[_T],
    *,
    fail: Callable[[str], Exception],
) -> _T:
    """`data` as `type`; whatever is wrong with it raises `fail(what)`.

    That is JSON that is malformed or not of that type, bytes that are not UTF-8, and nesting deeper
    than the decoder goes.
    """
    try:
        return msgspec.json.decode(data, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise fail(str(error)) from None
    except RecursionError:
        raise fail("nested too deep") from None
