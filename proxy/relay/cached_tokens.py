"""The prompt tokens that prefill found cached, in place of the decode worker's own count.

A decode worker that gets the KV from prefill finds the whole prompt "cached", new or not. What the
client is told is what was not computed for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# A quote inside a JSON string has a backslash before it, so that no text looks like this.
_NAME = b'"cached_tokens"'
_COUNT = re.compile(_NAME + rb"\s*:\s*\d+")


def with_cached_tokens(data: bytes, count: int) -> bytes:
    """An answer, or whole events of one, with this count wherever it tells one."""
    if _NAME not in data:
        return data
    return _COUNT.sub(b"%b:%d" % (_NAME, count), data)


def telling(count: int, sink: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """`sink`, which sees this count."""
    return lambda events: sink(with_cached_tokens(events, count))
