"""Cache events: what a worker's KV cache and embedding store gain and lose, as vLLM publishes it.

Transport. A worker binds a ZMQ PUB socket for each `EventSource` and sends three frames, `[topic,
sequence number (8 bytes, big-endian), payload]`. A ROUTER socket beside it replays: a request
names the first sequence number wanted, the answers are `[topic, sequence number, payload]`, one
message each, and the last has sequence number -1 and no payload. We also ask for `SNAPSHOT`: the
whole state, in batches under the newest sequence number, the first of which begins with a
`...Cleared` event; a publisher that does not know the question, as vLLM's, or that has said nothing
yet answers with the end mark alone.

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
_SEQ_BYTES = 8
_END = -1
SNAPSHOT = -2


class EventSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a worker publishes: ZMQ endpoints to connect to. Without `replay` a gap is for good."""

    endpoint: str
    replay: str = ""
    topic: str = ""


class CacheEvent(msgspec.Struct, tag_field="type", tag=True):
    pass


class BlockStored(CacheEvent):
    """KV blocks that can be reused, in prompt order.

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
    medium: str | None = None  # where the blocks lie, None for the worker's own cache
    lora_name: str | None = None  # vLLM's; not used
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
        return int.from_bytes(key[-_SEQ_BYTES:], "big")
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


def decode_batch(payload: bytes) -> EventBatch:
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
            batch.unknown += 1
    return batch


def _decode_event(data: msgspec.Raw) -> CacheEvent:
    first = memoryview(data)[0]
    is_array = 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)
    return _array_decoder.decode(data) if is_array else _map_decoder.decode(data)


def event_frames(topic: str, sequence: int, payload: bytes) -> list[bytes]:
    """One published message, or one answer of a replay."""
    return [topic.encode(), sequence.to_bytes(_SEQ_BYTES, "big", signed=True), payload]


def end_frames(topic: str = "") -> list[bytes]:
    """The last answer of a replay."""
    return event_frames(topic, _END, b"")


def parse_frames(frames: Sequence[bytes]) -> tuple[int, bytes] | None:
    """(sequence number, payload) of a message, None for a replay's end.

    Replays of some publishers leave the topic out, and REQ-style sockets put an empty frame before
    it: only the last two frames count. Raises `InvalidRequest` for anything else.
    """
    if len(frames) < 2 or len(frames[-2]) != _SEQ_BYTES:
        raise InvalidRequest("an event message must be [topic, 8-byte sequence number, payload]")
    sequence = int.from_bytes(frames[-2], "big", signed=True)
    if sequence == _END:
        return None
    if sequence < 0:
        raise InvalidRequest(f"the sequence number {sequence} is negative")
    return sequence, frames[-1]


def replay_request(start: int) -> list[bytes]:
    """Frames that a DEALER socket sends: everything from `start` on, or `SNAPSHOT`.

    A REQ socket, which adds the empty frame itself, could read only the first answer.
    """
    return [b"", start.to_bytes(_SEQ_BYTES, "big", signed=True)]


def parse_replay_request(frames: Sequence[bytes]) -> tuple[bytes, int]:
    """(client's address, first sequence number or `SNAPSHOT`) of what a ROUTER socket received.

    Answer with `[address, b"", *event_frames(...)]`. Raises `InvalidRequest` if malformed.
    """
    if len(frames) < 2 or len(frames[-1]) != _SEQ_BYTES:
        raise InvalidRequest("a replay request must be an 8-byte sequence number")
    start = int.from_bytes(frames[-1], "big", signed=True)
    if start < SNAPSHOT or start == _END:
        raise InvalidRequest(f"a replay cannot start at sequence number {start}")
    return frames[0], start
