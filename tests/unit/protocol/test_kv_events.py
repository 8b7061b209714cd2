"""Cache events in both of vLLM's encodings, and their frames."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from protocol.event_frames import (
    SNAPSHOT,
    end_frames,
    event_frames,
    parse_frames,
    parse_replay_request,
    replay_request,
)
from protocol.kv_events import (
    AllBlocksCleared,
    AllEmbeddingsCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    EmbeddingRemoved,
    EmbeddingStored,
    decode_event_batch,
    encode_batch,
    short_key,
)

STORED = BlockStored(
    [7, 2**64 - 1], 3, [1, 2, 3, 4], 2, medium="GPU", extra_keys=[None, [["a" * 64, -1]]]
)
EVENTS: list[CacheEvent] = [
    STORED,
    BlockRemoved([b"\x01" * 32], "GPU"),
    AllBlocksCleared(),
    EmbeddingStored("m", 4, 1024),
    EmbeddingRemoved("m"),
    AllEmbeddingsCleared(),
]


def fields(event: CacheEvent) -> dict[str, object]:
    return msgspec.structs.asdict(event)


@pytest.mark.parametrize("encoding", ["map", "array"])
def test_both_encodings_are_read_back(encoding: str) -> None:
    batch = decode_event_batch(encode_batch(1.25, EVENTS, 2, encoding))  # type: ignore[arg-type]
    assert (batch.ts, batch.dp_rank, batch.unknown) == (1.25, 2, 0)
    assert len(batch.events) == len(EVENTS)
    for read, written in zip(batch.events, EVENTS, strict=True):
        assert isinstance(read, type(written))
        assert fields(read) == fields(written)


def test_maps_are_written_as_vllm_writes_them() -> None:
    ts, events, rank = msgspec.msgpack.decode(encode_batch(1.0, [STORED]))
    assert (ts, rank) == (1.0, None)
    assert events == [
        {
            "type": "BlockStored", "block_hashes": [7, 2**64 - 1], "parent_block_hash": 3,
            "token_ids": [1, 2, 3, 4], "block_size": 2, "lora_id": None, "medium": "GPU",
            "lora_name": None, "extra_keys": [None, [["a" * 64, -1]]],
        }
    ]  # fmt: skip


def test_arrays_are_written_as_vllm_wrote_them() -> None:
    _, events, _ = msgspec.msgpack.decode(
        encode_batch(1.0, [STORED, AllBlocksCleared()], 0, "array")
    )
    assert events[0][:6] == ["BlockStored", [7, 2**64 - 1], 3, [1, 2, 3, 4], 2, None]
    assert events[1] == ["AllBlocksCleared"]


def test_older_and_newer_publishers_are_read() -> None:
    """Arrays of the first version had five fields; fields and batches may grow."""
    old = ["BlockStored", [1], None, [5, 6], 2]
    new = {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU", "group_idx": 0}
    batch = decode_event_batch(msgspec.msgpack.encode([2, [old, new], 0, "later"]))
    assert [type(e).__name__.lstrip("_") for e in batch.events] == ["BlockStored", "BlockRemoved"]


@pytest.mark.parametrize("length", [5, 15, 16, 17, 70_000])
def test_arrays_of_any_length_are_arrays(length: int) -> None:
    """msgpack has three forms of them."""
    event = ["BlockStored", [1], None, [5, 6], 2, *[None] * (length - 5)]
    batch = decode_event_batch(msgspec.msgpack.encode([2, [event], 0]))
    assert len(batch.events) == 1 and batch.unknown == 0


def test_what_is_unknown_in_a_batch_is_counted_and_the_rest_read() -> None:
    strange = [{"type": "BlockMoved"}, ["Nothing"], 7, {"type": "BlockRemoved"}, None]
    payload = msgspec.msgpack.encode([0.0, [*strange, {"type": "AllBlocksCleared"}], None])
    batch = decode_event_batch(payload)
    assert batch.unknown == len(strange)
    assert len(batch.events) == 1


@given(st.binary(max_size=64))
def test_garbage_is_refused_or_counted_never_more(payload: bytes) -> None:
    try:
        batch = decode_event_batch(payload)
    except InvalidRequest:
        return
    assert batch.unknown >= 0


def test_frames() -> None:
    assert parse_frames(event_frames("kv-events", 5, b"p")) == (5, b"p")
    assert parse_frames([b"", *event_frames("", 0, b"p")]) == (0, b"p")
    assert parse_frames(end_frames()) is None
    for frames in ([b"t"], [b"t", b"short", b"p"], event_frames("t", -3, b"p")):
        with pytest.raises(InvalidRequest):
            parse_frames(frames)


@pytest.mark.parametrize("start", [0, 17, SNAPSHOT])
def test_replay_requests(start: int) -> None:
    assert parse_replay_request([b"address", *replay_request(start)]) == (b"address", start)


def test_bad_replay_requests() -> None:
    for frames in ([b"address"], [b"address", b"", b"12"], [b"address", *replay_request(-1)]):
        with pytest.raises(InvalidRequest):
            parse_replay_request(frames)


def test_short_keys_are_the_low_64_bits() -> None:
    assert short_key(b"\xff" * 24 + (5).to_bytes(8, "big")) == 5
    assert short_key(-1) == 2**64 - 1
    assert short_key(7) == 7
