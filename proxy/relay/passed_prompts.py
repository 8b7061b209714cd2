"""Prompts of Anthropic messages and of responses, part after part, in the order of the prompt.

What clients write in another way from turn to turn is left out: marks for a cache, a text as a list
of one. What is malformed is given as it is: the worker refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from protocol.anthropic import MESSAGES_PATH
from protocol.responses import RESPONSES_PATH

Json = dict[str, Any]
_MARK = "cache_control"
# Of an item of a response: what stands in parts of its own, and what the server has added.
_NOT_SAID = ("content", "output", "id", "status")


class MediaPlace(NamedTuple):
    """Where a media item stands. `part`: it, in its route's own form."""

    part: Json


@dataclass(frozen=True)
class PromptForm:
    """How a route writes a prompt: `parts` of a body, and `limit`, the field with the most tokens
    of the answer."""

    parts: Callable[[Json], Iterator[Any]]
    limit: str


def _message_parts(fields: Json) -> Iterator[Any]:
    yield from _parts(fields.get("system"), lambda block: False)
    messages = fields.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            yield message
            continue
        yield message.get("role")
        yield from _parts(message.get("content"), _is_image)


def _response_parts(fields: Json) -> Iterator[Any]:
    yield fields.get("instructions")
    given = fields.get("input")
    if not isinstance(given, list):
        yield "user"
        yield given
        return
    for item in given:
        if not isinstance(item, dict):
            yield item
            continue
        role = item.get("role")
        yield role or {name: value for name, value in item.items() if name not in _NOT_SAID}
        for name in ("content", "output"):
            if name in item:
                yield from _parts(item[name], _is_input_image)


def _parts(content: Any, is_picture: Callable[[Json], bool], *, inner: bool = False) -> Any:
    """Of a message, or of a tool's result, `inner`, which has none in it."""
    if not isinstance(content, list):
        yield content
        return
    for block in content:
        if not isinstance(block, dict):
            yield block
        elif is_picture(block):
            yield MediaPlace(block)
        elif isinstance(text := block.get("text"), str):
            yield text
        elif block.get("type") == "tool_result" and not inner:
            yield block.get("tool_use_id")
            yield from _parts(block.get("content"), is_picture, inner=True)
        elif _MARK in block:
            yield {name: value for name, value in block.items() if name != _MARK}
        else:
            yield block


def _is_image(block: Json) -> bool:
    source = block.get("source") if block.get("type") == "image" else None
    return isinstance(source, dict) and (
        source.get("type") == "base64" or isinstance(source.get("url"), str)
    )


def _is_input_image(block: Json) -> bool:
    return block.get("type") == "input_image" and isinstance(block.get("image_url"), str)


FORMS: Mapping[str, PromptForm] = MappingProxyType(
    {
        MESSAGES_PATH: PromptForm(_message_parts, "max_tokens"),
        RESPONSES_PATH: PromptForm(_response_parts, "max_output_tokens"),
    }
)
"""By the route's path."""


def url_of(place: MediaPlace) -> str:
    """A picture's, as a part of a chat has it."""
    source = place.part.get("source")
    if not isinstance(source, dict):
        return str(place.part["image_url"])
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return str(source["url"])
