"""What `/v1/messages` and `/v1/responses` share on their way to a chat.

Content is checked; errors are told by the names that fields have in the client's own request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from protocol.errors import InvalidRequest

Json = dict[str, Any]


def string_of(part: Json, name: str, where: str) -> str:
    """The field `name` of what stands at `where`; `InvalidRequest` if it is no string."""
    value = part.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}.{name} must be a string", param=f"{where}.{name}")
    return value


def content_of(content: Any, where: str, part_of: Callable[[Any, str], Json]) -> str | list[Json]:
    """A string as it is, of a list each part as `part_of` (part, its place) makes it;
    `InvalidRequest` for anything else."""
    # A string stays one: templates may treat it otherwise than one part of text.
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} must be a string or a list", param=where)
    return [part_of(part, f"{where}[{i}]") for i, part in enumerate(content)]


Renaming = tuple[re.Pattern[str], str]
"""A chat's field, and what stands for it; matched at the start of a field's path."""


def renaming(*names: tuple[str, str]) -> tuple[Renaming, ...]:
    """`names`: regular expressions, and replacements as `re.sub` takes them."""
    # In order: the first that matches names the field.
    return tuple((re.compile(chat), other) for chat, other in names)


def renamed(error: InvalidRequest, names: Iterable[Renaming]) -> InvalidRequest:
    """The same error; its text begins with the field too, where it names it."""
    for pattern, other in names:
        if error.param is not None and pattern.match(error.param):
            error.param = pattern.sub(other, error.param, count=1)
            # Messages begin with the field as often as not.
            if pattern.match(error.message):
                error.message = pattern.sub(other, error.message, count=1)
            break
    return error
