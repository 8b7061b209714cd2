"""Media in the requests that are passed on, in each route's own form, as parts of a chat.

What is malformed is passed over: the worker refuses it by the name that it has in the route's form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from protocol.openai import BATCH_PATH
from protocol.pooling import EMBEDDINGS_PATHS, POOLING_PATH
from proxy.relay.media import MediaItem, media_of
from proxy.relay.passed_prompts import FORMS, MediaPlace, PromptForm, url_of

Json = dict[str, Any]


def media_passed(path: str, fields: Json) -> list[list[MediaItem]]:
    """The items of a request with this body for the route `path`, for each chat in it."""
    find = _FORMS.get(path)
    return [] if find is None else find(fields)


def _of_chat(fields: Json) -> list[list[MediaItem]]:
    return [media_of(fields.get("messages"))[0]]


def _of_batch(fields: Json) -> list[list[MediaItem]]:
    return [media_of(messages)[0] for messages in _list(fields.get("messages"))]


def _of_form(form: PromptForm) -> Callable[[Json], list[list[MediaItem]]]:
    def find(fields: Json) -> list[list[MediaItem]]:
        places = (part for part in form.parts(fields) if isinstance(part, MediaPlace))
        parts = [{"type": "image_url", "image_url": {"url": url_of(place)}} for place in places]
        return [[MediaItem(0, i, "image", i, part) for i, part in enumerate(parts)]]

    return find


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_FORMS: Mapping[str, Callable[[Json], list[list[MediaItem]]]] = MappingProxyType(
    {
        **dict.fromkeys((*EMBEDDINGS_PATHS, POOLING_PATH), _of_chat),
        BATCH_PATH: _of_batch,
        **{path: _of_form(form) for path, form in FORMS.items()},
    }
)
