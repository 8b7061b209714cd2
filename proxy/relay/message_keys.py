"""Keys over the parts of a request's messages, where nothing can render them into tokens.

The request is written down as one run of bytes, from which each block's key is chained: what comes
first in a prompt comes first here. Four bytes count as a token, a media item as so many tokens.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from blake3 import blake3

from protocol.placement import MediaNeed
from proxy.placement.planner import Need
from proxy.relay.bodies import RequestBody, digest_of

_BYTES_PER_TOKEN = 4  # a rough mean: keys only have to be equal where prompts are
_TOKENS_PER_ITEM = 256  # about a picture of 448 pixels a side
_FIRST = ("model", "tools", "cache_salt", "chat_template", "chat_template_kwargs")
_ENCODER = msgspec.json.Encoder()


def predicted_need(body: RequestBody, request_id: str) -> tuple[Need, list[str]]:
    """The need of an attempt of a request by its messages; names of its media."""
    # Over what an encoder is sent: under other options the same picture has other embeddings.
    names = [digest_of(body.encode_body(item)).hex() for item in body.items]
    text, offsets = _written(body, names)
    items = [
        MediaNeed(
            mm_hash,
            _TOKENS_PER_ITEM,
            offset // _BYTES_PER_TOKEN,
            modality="image" if item.modality == "image" else "video",
        )
        for item, mm_hash, offset in zip(body.items, names, offsets, strict=True)
    ]
    root = _root(body.fields)

    @functools.cache  # a long prompt has thousands of keys, which every attempt takes along
    def keys(block_size: int) -> list[int]:
        return chained(root, text, block_size * _BYTES_PER_TOKEN)

    need = Need(
        request_id,
        max(1, -(-len(text) // _BYTES_PER_TOKEN)),
        _max_tokens(body.fields),
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
    return blake3(_ENCODER.encode([fields.get(name) for name in _FIRST])).digest()


def _written(body: RequestBody, names: list[str]) -> tuple[bytes, list[int]]:
    """The request as bytes, and where each media item begins in them."""
    messages = body.fields.get("messages")
    if not isinstance(messages, list):
        return _ENCODER.encode(body.fields.get("prompt")), []
    places = {(item.message, item.part): i for i, item in enumerate(body.items)}
    text, offsets = bytearray(), [0] * len(names)
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            text += _ENCODER.encode(message)
            continue
        text += _ENCODER.encode({k: v for k, v in message.items() if k != "content"})
        for place, part in enumerate(content):
            index = places.get((number, place))
            if index is None:
                text += _ENCODER.encode(part)
            else:
                offsets[index] = _align(text)
                text += _stand_in(names[index])
    return bytes(text), offsets


def _align(text: bytearray) -> int:
    """A media item begins with a token, so that its span is one."""
    text += b" " * (-len(text) % _BYTES_PER_TOKEN)
    return len(text)


def _stand_in(name: str) -> bytes:
    size = _TOKENS_PER_ITEM * _BYTES_PER_TOKEN
    # As many bytes as its tokens count: offsets in bytes and in tokens must stay in step.
    return (name.encode() * (size // len(name) + 1))[:size]


def _max_tokens(fields: dict[str, Any]) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        given = fields.get(name)
        if type(given) is int and 0 < given < 1 << 40:
            return given
    return 0


def _model(fields: dict[str, Any]) -> str:
    given = fields.get("model")
    return given if isinstance(given, str) and len(given) <= 256 else ""
