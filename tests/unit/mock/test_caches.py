"""What mock workers count instead of holding it: KV blocks, embeddings, encode runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.types import EncodeItem, EncodeOutput, EncodeRequest
from services.mock.embeddings import EmbeddingStore
from services.mock.encoding import EncodeQueue
from services.mock.kv_blocks import Holding, KVBlocks
from services.mock.timing import Noise, Timing


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def holding(blocks: KVBlocks, *numbers: int) -> Holding:
    """An owner of new blocks with these keys."""
    owned = blocks.take([], len(numbers))
    for number in numbers:
        assert blocks.name(owned, key(number))
    return owned


def test_a_released_prefix_is_found_again_and_costs_nothing() -> None:
    blocks = KVBlocks(8, 16)
    blocks.release(holding(blocks, 1, 2, 3))
    assert blocks.num_free == 8 and blocks.match([key(1), key(2), key(9)]) == 2
    again = blocks.take([key(1), key(2)], 1)
    assert (again.blocks, blocks.num_free) == (3, 5)
    assert blocks.check_integrity([again]) == []


def test_the_end_of_the_oldest_prefix_is_evicted_first() -> None:
    blocks = KVBlocks(4, 16)
    blocks.release(holding(blocks, 1, 2))
    blocks.release(holding(blocks, 3, 4))
    blocks.take([], 3)
    assert blocks.removed == [key(2), key(1), key(4)]
    assert blocks.match([key(3)]) == 1


def test_room_is_not_counted_twice() -> None:
    """Free blocks that hold the prefix cannot also be the new ones."""
    blocks = KVBlocks(4, 16)
    blocks.release(holding(blocks, 1, 2))
    assert blocks.can_take([key(1), key(2)], 2)
    assert not blocks.can_take([key(1), key(2)], 3)
    assert not blocks.grow(Holding(), 5)


def test_a_second_block_with_the_same_content_stays_without_a_key() -> None:
    blocks = KVBlocks(4, 16)
    first, second = holding(blocks, 1), blocks.take([], 1)
    assert not blocks.name(second, key(1))
    assert (second.keys, second.unnamed) == ([], 1)
    blocks.release(second)
    blocks.release(first)
    assert blocks.num_free == 4 and blocks.num_known == 1


def test_a_reset_forgets_owned_prefixes_too() -> None:
    blocks = KVBlocks(4, 16)
    owned = holding(blocks, 1)
    blocks.reset()
    assert blocks.match([key(1)]) == 0 and list(blocks.known()) == []
    assert blocks.check_integrity([owned]) == []
    blocks.release(owned)
    assert blocks.num_known == 0 and blocks.num_free == 4


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 11)), max_size=60))
def test_books_agree_after_anything(operations: list[tuple[int, int]]) -> None:
    blocks = KVBlocks(10, 16)
    owners: list[Holding] = []
    for kind, number in operations:
        known, version = set(blocks.known()), blocks.version
        prefix = [key(n) for n in range(number)]
        matched = prefix[: blocks.match(prefix)]
        if kind == 0 and blocks.can_take(matched, number - len(matched)):
            owned = blocks.take(matched, number - len(matched))
            for name in prefix[len(matched) :]:
                blocks.name(owned, name)
            owners.append(owned)
        elif kind == 1 and owners:
            blocks.release(owners.pop(number % len(owners)))
        elif kind == 2 and owners:
            owners.append(blocks.split(owners[number % len(owners)], number // 2))
        elif kind == 3 and owners:
            blocks.grow(owners[-1], number)
        elif kind == 4 and number == 0:
            blocks.reset()
        assert blocks.check_integrity(owners) == []
        assert 0 <= blocks.num_free == blocks.num_blocks - _distinct(owners)
        changes, grown = len(known ^ set(blocks.known())), blocks.version - version
        assert changes <= grown if kind == 0 else changes == grown, "evicted and known again"
    for owned in owners:
        blocks.release(owned)
    assert blocks.num_free == 10 and blocks.usage == 0.0


def _distinct(owners: list[Holding]) -> int:
    return len({k for o in owners for k in o.keys}) + sum(o.unnamed for o in owners)


def test_embeddings_leave_in_the_order_of_use() -> None:
    store = EmbeddingStore(capacity=100, row_bytes=10)
    for name in "abc":
        assert store.put(name, 3)
    assert store.find("a") == 3
    store.put("d", 4)
    assert store.names() == ["c", "a", "d"] and store.size == 100
    assert store.changes == [("a", 3), ("b", 3), ("c", 3), ("d", 4), ("b", 0)]
    assert not store.put("huge", 11) and "huge" not in store


def test_an_embedding_put_again_is_counted_once() -> None:
    store = EmbeddingStore(capacity=100, row_bytes=10)
    store.put("a", 3)
    store.put("a", 3)
    assert (store.size, len(store)) == (30, 1)


def queue(timing: Timing | None = None, max_patches: int = 100) -> EncodeQueue:
    store = EmbeddingStore(1 << 20, 1)
    timing = timing or Timing(encode_base_ms=10, encode_patch_ms=1)
    return EncodeQueue(store, timing, Noise(), max_patches, lambda name, rows: {"rows": rows})


def request(name: str, *hashes: str, data: bytes | None = b"x", **more: float) -> EncodeRequest:
    items = [EncodeItem(mm_hash, "image", 4, (1, 4, 4), data) for mm_hash in hashes]
    return EncodeRequest(name, items, **more)  # type: ignore[arg-type]


def drained(encoding: EncodeQueue, now: float = 0.0) -> list[tuple[float, EncodeOutput]]:
    """Every answer with its time."""
    answers = [(now, output) for output in encoding.step(now)]
    while (time := encoding.next_time) is not None:
        answers += [(time, output) for output in encoding.step(time)]
    return answers


def test_a_run_takes_what_fits_and_lasts_as_long_as_its_patches_say() -> None:
    encoding = queue(max_patches=32)
    assert encoding.add(request("r", "a", "b", "c"), 0.0) == []
    times = {output.mm_hash: time for time, output in drained(encoding)}
    assert times == pytest.approx({"a": 0.042, "b": 0.042, "c": 0.068})
    assert (encoding.runs, encoding.encoded, len(encoding)) == (2, 3, 0)


def test_requests_for_one_item_share_its_run() -> None:
    encoding = queue()
    encoding.add(request("r1", "a"), 0.0)
    encoding.step(0.0)
    encoding.add(request("r2", "a", data=None), 0.01)
    answers = drained(encoding, 0.01)
    assert {output.request_id for _, output in answers} == {"r1", "r2"}
    assert encoding.encoded == 1 and encoding.received_bytes == 1
    (cached,) = encoding.add(request("r3", "a", data=None), 1.0)
    assert cached.cached and cached.params == {"rows": 4}


def test_an_unknown_item_without_data_is_reported_missing() -> None:
    (output,) = queue().add(request("r", "a", data=None), 0.0)
    assert output.missing and output.params is None


def test_a_late_or_aborted_request_leaves_nothing_behind() -> None:
    encoding = queue(max_patches=16)
    encoding.add(request("r1", "a"), 0.0)
    encoding.add(request("r2", "b", deadline_s=0.005), 0.0)
    encoding.add(request("r3", "c"), 0.0)
    encoding.step(0.0)
    encoding.abort(["r3"])
    answers = drained(encoding)
    assert [(time, output.mm_hash) for time, output in answers] == [(0.005, "b"), (0.026, "a")]
    assert answers[0][1].error is not None and answers[0][1].error.status == 504
    assert len(encoding) == 0 and encoding.encoded == 1


def test_jitter_is_the_same_for_the_same_seed_and_bounded() -> None:
    draws = [[noise.on(1.0) for _ in range(50)] for noise in (Noise(0.2, 7), Noise(0.2, 7))]
    assert draws[0] == draws[1]
    assert all(0.8 <= value <= 1.2 for value in draws[0]) and len(set(draws[0])) == 50
    assert Noise(slow=3.0).on(2.0) == 6.0
