"""Cache events: what a worker's KV cache and embedding store gain and lose, as vLLM publishes it.

`protocol.event_frames` has the messages that carry them.

Payload. msgpack of `[ts, [event, ...], dp_rank]`. vLLM wrote events as arrays with the tag first
until June 2026, as maps with the tag under `type` since; both are read, and written on demand.

Block hashes of our workers are `short_key` of the content key. Those of other engines are names
without meaning (`services.master.index.foreign_blocks` matches tokens and media instead).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, get_args

import msgspec

from protocol.errors import InvalidRequest

KV_TOPIC = "kv-events"
EC_TOPIC = "ec-events"
Encoding = Literal["map", "array"]
BlockHash = int | bytes
_MASK = (1 << 64) - 1
_KEY_BYTES = 8


class EventSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a worker publishes: ZMQ endpoints to connect to. Without `replay` a gap is for good."""

    endpoint: str
    replay: str = ""
    topic: str = ""


class CacheEvent(msgspec.Struct, tag_field="type", tag=True):
    pass


class BlockStored(CacheEvent):
    """KV blocks that can be reused, in prompt order. Below the pool the order means nothing, and
    neither tokens nor parents are told, as in vLLM.

    An entry of `extra_keys` is None, or what else the block's values depend on: `[mm_hash, offset]`
    of an item that overlaps it, offset in tokens from the block's start to the item's; or a string
    (LoRA name, cache salt).
    """

    block_hashes: list[BlockHash]  # one per block
    # block before the first one, None at the prompt's start
    parent_block_hash: BlockHash | None = None
    token_ids: list[int] = []  # `block_size` for each block
    block_size: int = 0  # tokens in one block
    lora_id: int | None = None  # vLLM's; not used
    # where the blocks lie: GPU or None for the pool, on any device; CPU or DISK below it
    medium: str | None = None
    lora_name: str | None = None  # the LoRA adapter that computed them, None for the model itself
    extra_keys: list[list[Any] | None] | None = None  # one entry per block, None for no entries


class BlockRemoved(CacheEvent):
    block_hashes: list[BlockHash]
    medium: str | None = None


class AllBlocksCleared(CacheEvent):
    pass


class EmbeddingStored(CacheEvent):
    """Embeddings of a media item that others may fetch. `tokens` rows, `size_bytes` in all."""

    mm_hash: str
    tokens: int = 0
    size_bytes: int = 0
    medium: str | None = None


class EmbeddingRemoved(CacheEvent):
    mm_hash: str
    medium: str | None = None


class AllEmbeddingsCleared(CacheEvent):
    pass


class _BlockStored(BlockStored, array_like=True, tag="BlockStored"):
    pass


class _BlockRemoved(BlockRemoved, array_like=True, tag="BlockRemoved"):
    pass


class _AllBlocksCleared(AllBlocksCleared, array_like=True, tag="AllBlocksCleared"):
    pass


class _EmbeddingStored(EmbeddingStored, array_like=True, tag="EmbeddingStored"):
    pass


class _EmbeddingRemoved(EmbeddingRemoved, array_like=True, tag="EmbeddingRemoved"):
    pass


class _AllEmbeddingsCleared(AllEmbeddingsCleared, array_like=True, tag="AllEmbeddingsCleared"):
    pass


_Maps = (
    BlockStored
    | BlockRemoved
    | AllBlocksCleared
    | EmbeddingStored
    | EmbeddingRemoved
    | AllEmbeddingsCleared
)
_Arrays = (
    _BlockStored
    | _BlockRemoved
    | _AllBlocksCleared
    | _EmbeddingStored
    | _EmbeddingRemoved
    | _AllEmbeddingsCleared
)


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    dp_rank: int | None = None


class EventBatch(msgspec.Struct):
    """`ts`: seconds of the publisher's wall clock. `unknown`: events that could not be read."""

    ts: float
    events: list[CacheEvent]
    dp_rank: int | None = None
    unknown: int = 0


_batch_decoder = msgspec.msgpack.Decoder(_Batch)
_map_decoder: msgspec.msgpack.Decoder[CacheEvent] = msgspec.msgpack.Decoder(_Maps)
_array_decoder: msgspec.msgpack.Decoder[CacheEvent] = msgspec.msgpack.Decoder(_Arrays)
_ARRAY_TYPES: Mapping[Any, type[CacheEvent]] = MappingProxyType(
    {kind.__struct_config__.tag: kind for kind in get_args(_Arrays)}
)


def short_key(key: bytes | int) -> int:
    """The name of a block in events and in the master: the low 64 bits, as vLLM shortens hashes."""
    if isinstance(key, bytes):
        return int.from_bytes(key[-_KEY_BYTES:], "big")
    return key & _MASK


def encode_batch(
    ts: float,
    events: Sequence[CacheEvent],
    dp_rank: int | None = None,
    encoding: Encoding = "map",
) -> bytes:
    """The payload of one message."""
    written = events if encoding == "map" else [_as_array(event) for event in events]
    return msgspec.msgpack.encode([ts, written, dp_rank])


def _as_array(event: CacheEvent) -> CacheEvent:
    kind = _ARRAY_TYPES[event.__struct_config__.tag]
    return kind(*(getattr(event, name) for name in event.__struct_fields__))


def decode_event_batch(payload: bytes) -> EventBatch:
    """A batch in either encoding; an event of an unknown kind or shape is counted, not raised.

    Raises `InvalidRequest` if the payload is no batch at all.
    """
    try:
        raw = _batch_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the payload is not a batch of cache events: {error}") from None
    batch = EventBatch(raw.ts, [], raw.dp_rank)
    for data in raw.events:
        try:
            batch.events.append(_decode_event(data))
        except (msgspec.DecodeError, UnicodeDecodeError):
            # A newer vLLM may publish kinds that are not known here: the rest of the batch counts.
            batch.unknown += 1
    return batch


def _decode_event(data: msgspec.Raw) -> CacheEvent:
    first = memoryview(data)[0]
    # msgpack: fixarray, array 16 and array 32.
    is_array = 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)
    return _array_decoder.decode(data) if is_array else _map_decoder.decode(data)
