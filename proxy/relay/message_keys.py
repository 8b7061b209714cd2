"""Keys over the parts of a request's messages, where nothing can render them into tokens.

The request is written down as one run of bytes, from which each block's key is chained: what comes
first in a prompt comes first here. Four bytes count as a token, a media item as so many tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from blake3 import blake3

from protocol.placement import MediaNeed
from proxy.placement.planner import Need
from proxy.relay.bodies import RequestBody, digest_of
from proxy.relay.json_fields import json_of
from proxy.relay.media import MediaItem
from proxy.relay.passed_prompts import MediaPlace, PromptForm

_BYTES_PER_TOKEN = 4  # a rough mean: keys only have to be equal where prompts are
_TOKENS_PER_ITEM = 256  # about a picture of 448 pixels a side
_FIRST = ("model", "tools", "cache_salt", "chat_template", "chat_template_kwargs")
_CHAT_LIMITS = ("max_completion_tokens", "max_tokens")


def predicted_need(body: RequestBody, request_id: str) -> tuple[Need, list[str]]:
    """The need of an attempt of a chat or a completion; names of its media."""
    return _need(body, body.items, _parts(body), _CHAT_LIMITS, request_id)


def passed_need(
    body: RequestBody, media: Sequence[MediaItem], form: PromptForm, request_id: str
) -> tuple[Need, list[str]]:
    """As `predicted_need`, of a body in another form; `media`: all that is in it, or nothing."""
    need, names = _need(body, media, form.parts(body.fields), (form.limit,), request_id)
    return replace(need, alone=True), names


def _need(
    body: RequestBody,
    media: Sequence[MediaItem],
    parts: Iterable[Any],
    limits: Sequence[str],
    request_id: str,
) -> tuple[Need, list[str]]:
    # Over what an encoder is sent: under other options the same picture has other embeddings.
    names = [digest_of(body.encode_body(item)).hex() for item in media]
    text, offsets = _written(parts, names)
    items = [
        MediaNeed(
            mm_hash,
            _TOKENS_PER_ITEM,
            offset // _BYTES_PER_TOKEN,
            modality="image" if item.modality == "image" else "video",
        )
        for item, mm_hash, offset in zip(media, names, offsets, strict=True)
    ]
    root = _root(body.fields)

    @functools.cache  # a long prompt has thousands of keys, which every attempt takes along
    def keys(block_size: int) -> list[int]:
        return chained(root, text, block_size * _BYTES_PER_TOKEN)

    need = Need(
        request_id,
        max(1, -(-len(text) // _BYTES_PER_TOKEN)),
        _max_tokens(body.fields, limits),
        items,
        keys,
        _model(body.fields),
        predicted=True,
    )
    return need, names


def chained(root: bytes, text: bytes, size: int) -> list[int]:
    """Keys of 63 bits of the full blocks of `size` bytes."""
    keys, parent = [], root
    for start in range(0, len(text) - size + 1, size):
        parent = blake3(parent + text[start : start + size]).digest()
        keys.append(int.from_bytes(parent[:8], "little") >> 1)
    return keys


def _root(fields: dict[str, Any]) -> bytes:
    """What decides over the whole prompt: the model or adapter, tools, the tenant's salt."""
    return blake3(json_of([fields.get(name) for name in _FIRST])).digest()


def _parts(body: RequestBody) -> Iterator[Any]:
    """A chat, or the prompt of a completion, part after part."""
    messages = body.fields.get("messages")
    if not isinstance(messages, list):
        yield body.fields.get("prompt")
        return
    places = {(item.message, item.part) for item in body.items}
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            yield message
            continue
        yield {k: v for k, v in message.items() if k != "content"}
        for place, part in enumerate(content):
            yield MediaPlace(part) if (number, place) in places else part


def _written(parts: Iterable[Any], names: Sequence[str]) -> tuple[bytes, list[int]]:
    """`parts` as bytes, and where each media item begins in them. What has no name has no place
    of its own."""
    text, offsets, left = bytearray(), [], iter(names)
    for part in parts:
        if not isinstance(part, MediaPlace):
            text += json_of(part)
        elif (name := next(left, None)) is not None:
            offsets.append(_align(text))
            text += _stand_in(name)
    return bytes(text), offsets


def _align(text: bytearray) -> int:
    """A media item begins with a token, so that its span is one."""
    text += b" " * (-len(text) % _BYTES_PER_TOKEN)
    return len(text)


def _stand_in(name: str) -> bytes:
    size = _TOKENS_PER_ITEM * _BYTES_PER_TOKEN
    # As many bytes as its tokens count: offsets in bytes and in tokens must stay in step.
    return (name.encode() * (size // len(name) + 1))[:size]


def _max_tokens(fields: dict[str, Any], names: Sequence[str]) -> int:
    for name in names:
        given = fields.get(name)
        if type(given) is int and 0 < given < 1 << 40:
            return given
    return 0


def _model(fields: dict[str, Any]) -> str:
    given = fields.get("model")
    return given if isinstance(given, str) and len(given) <= 256 else ""
