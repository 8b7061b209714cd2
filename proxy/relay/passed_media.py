"""Media in the requests that are passed on, in each route's own form, as parts of a chat.

What is malformed is passed over: the worker refuses it by the name that it has in the route's form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from protocol.anthropic import MESSAGES_PATH
from protocol.openai import BATCH_PATH
from protocol.pooling import EMBEDDINGS_PATHS, POOLING_PATH
from protocol.responses import RESPONSES_PATH
from proxy.relay.media import MediaItem, media_of

Json = dict[str, Any]


def media_passed(path: str, fields: Json) -> list[list[MediaItem]]:
    """The items of a request with this body for the route `path`, for each chat in it."""
    find = _FORMS.get(path)
    return [] if find is None else find(fields)


def _of_chat(fields: Json) -> list[list[MediaItem]]:
    return [media_of(fields.get("messages"))[0]]


def _of_batch(fields: Json) -> list[list[MediaItem]]:
    return [media_of(messages)[0] for messages in _list(fields.get("messages"))]


def _of_response(fields: Json) -> list[list[MediaItem]]:
    urls = (
        part.get("image_url")
        for item in _objects(fields.get("input"))
        for name in ("content", "output")  # of a message, of a call's result
        for part in _objects(item.get(name))
        if part.get("type") == "input_image"
    )
    return [_pictures(urls)]


def _of_message(fields: Json) -> list[list[MediaItem]]:
    blocks = (
        block
        for message in _objects(fields.get("messages"))
        for block in _objects(message.get("content"))
    )
    return [_pictures(_url(picture) for block in blocks for picture in _within(block))]


def _within(block: Json) -> Iterable[Json]:
    """Of a block of Anthropic's: itself, or what a tool's result is made of."""
    return _objects(block.get("content")) if block.get("type") == "tool_result" else (block,)


def _url(block: Json) -> Any:
    source = block.get("source")
    if block.get("type") != "image" or not isinstance(source, dict):
        return None
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return source.get("url")


def _pictures(urls: Iterable[Any]) -> list[MediaItem]:
    found = [url for url in urls if isinstance(url, str)]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in found]
    return [MediaItem(0, i, "image", i, part) for i, part in enumerate(parts)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _objects(value: Any) -> Iterator[Json]:
    return (entry for entry in _list(value) if isinstance(entry, dict))


_FORMS: Mapping[str, Callable[[Json], list[list[MediaItem]]]] = MappingProxyType(
    {
        **dict.fromkeys((*EMBEDDINGS_PATHS, POOLING_PATH), _of_chat),
        BATCH_PATH: _of_batch,
        RESPONSES_PATH: _of_response,
        MESSAGES_PATH: _of_message,
    }
)
