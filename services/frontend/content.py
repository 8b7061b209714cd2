"""Content of messages in the forms of `/v1/messages` and `/v1/responses`, checked."""

from __future__ import annotations

from collections.abc import Callable
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
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} must be a string or a list", param=where)
    return [part_of(part, f"{where}[{i}]") for i, part in enumerate(content)]
