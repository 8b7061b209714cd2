"""What mock workers count instead of holding it: embeddings and encode runs."""

from typing import Any

import pytest

from benchmarks.simulate.clock import Clock
from connectors.base import Entry
from protocol.errors import TransferError
from protocol.types import EncodeItem, EncodeOutput, EncodeRequest
from services.mock.ec import CountedEC, rows
from services.mock.engine import Engine
from services.mock.settings import EngineSettings
from services.mock.timing import Noise, Timers, Timing


def store(capacity: int) -> tuple[CountedEC, list[tuple[str, int]]]:
    """A store of entries of 10 bytes a row, and what it says of its changes."""
    settings = EngineSettings(role="encode", ec_cache_bytes=capacity, row_bytes=10)
    changes: list[tuple[str, int]] = []
    found = CountedEC(
        settings, Timing(), Noise(), Clock().time, Timers(), [],
        changed=lambda name, rows, size: changes.append((name, rows)),
    )  # fmt: skip
    return found, changes


def put(ec: CountedEC, name: str, count: int) -> None:
    assert ec.offer(name, Entry(rows(count), ())) is not None


def test_embeddings_leave_in_the_order_of_use() -> None:
    ec, changes = store(100)
    for name in "abc":
        put(ec, name, 3)
    assert ec.rows_of("a") == 3
    put(ec, "d", 4)
    assert changes == [("a", 3), ("b", 3), ("c", 3), ("d", 4), ("b", 0)]
    assert ec.stats().bytes_held == 100 and ec.check_integrity() == []
    with pytest.raises(TransferError, match="larger"):
        ec.offer("huge", Entry(rows(11), ()))


def test_an_embedding_put_again_is_counted_once() -> None:
    ec, changes = store(100)
    put(ec, "a", 3)
    put(ec, "a", 3)
    assert ec.stats().bytes_held == 30 and changes == [("a", 3)]


class Encoder:
    """An encoder of pictures of 16 patches, which take 26 ms: 10 and one for each."""

    def __init__(self, max_patches: int = 100) -> None:
        self.clock = Clock()
        settings = EngineSettings(role="encode", max_encoder_patches=max_patches, host="h", port=1)
        timing = Timing(encode_base_ms=10, encode_patch_ms=1)
        self.engine = Engine(settings, timing, Noise(), self.clock.time)
        assert self.engine.encode is not None
        self.queue = self.engine.encode
        self.answers: list[tuple[float, EncodeOutput]] = []

    def add(self, name: str, *hashes: str, data: bytes | None = b"x", **more: Any) -> None:
        items = [EncodeItem(mm_hash, "image", 4, (1, 4, 4), data) for mm_hash in hashes]
        at_once = self.engine.add_encode(EncodeRequest(name, items, **more))
        self.answers += [(self.clock.now, output) for output in at_once]

    def run(self, until: float = 10.0) -> None:
        while True:
            step = self.engine.step()
            self.answers += [(self.clock.now, output) for output in step.encoded]
            if step.next_time is None or step.next_time > until:
                self.clock.now = until
                return
            self.clock.now = step.next_time


def test_the_first_run_is_one_picture_and_others_as_long_as_their_patches_say() -> None:
    encoder = Encoder(max_patches=32)
    encoder.add("r", "a", "b", "c")
    encoder.run()
    times = {output.mm_hash: time for time, output in encoder.answers}
    assert times == pytest.approx({"a": 0.026, "b": 0.068, "c": 0.068})
    assert (encoder.queue.runs, encoder.queue.encoded, len(encoder.queue)) == (2, 3, 0)


def test_requests_for_one_item_share_its_run() -> None:
    encoder = Encoder()
    encoder.add("r1", "a")
    encoder.run(until=0.01)
    encoder.add("r2", "a", data=None)
    encoder.run()
    assert {output.request_id for _, output in encoder.answers} == {"r1", "r2"}
    assert encoder.queue.encoded == 1 and encoder.queue.received_bytes == 1
    encoder.add("r3", "a", data=None)
    cached = encoder.answers[-1][1]
    assert cached.cached and cached.params is not None and cached.params["peer_port"] == 1
    assert cached.params["shape"][0] == 4


def test_an_unknown_item_without_data_is_reported_missing() -> None:
    encoder = Encoder()
    encoder.add("r", "a", data=None)
    ((_, output),) = encoder.answers
    assert output.missing and output.params is None


def test_an_empty_item_is_refused() -> None:
    encoder = Encoder()
    encoder.add("r", "a", data=b"")
    encoder.run()
    ((_, output),) = encoder.answers
    assert output.error is not None and output.error.status == 400


def test_a_late_or_aborted_request_leaves_nothing_behind() -> None:
    encoder = Encoder(max_patches=16)
    encoder.add("r1", "a")
    encoder.add("r2", "b", deadline_s=0.005)
    encoder.add("r3", "c")
    encoder.run(until=0.0)
    encoder.engine.abort(["r3"])
    encoder.run()
    found = [(time, output.mm_hash) for time, output in encoder.answers]
    assert found == [(0.005, "b"), (pytest.approx(0.026), "a")]
    error = encoder.answers[0][1].error
    assert error is not None and error.status == 504
    assert len(encoder.queue) == 0 and encoder.queue.encoded == 1


def test_jitter_is_the_same_for_the_same_seed_and_bounded() -> None:
    draws = [[noise.on(1.0) for _ in range(50)] for noise in (Noise(0.2, 7), Noise(0.2, 7))]
    assert draws[0] == draws[1]
    assert all(0.8 <= value <= 1.2 for value in draws[0]) and len(set(draws[0])) == 50
    assert Noise(slow=3.0).on(2.0) == 6.0


def test_a_picture_waits_for_the_run_before_its_own() -> None:
    encoder = Encoder(max_patches=16)
    encoder.add("r", "one", "two")
    encoder.run()
    assert encoder.queue.queue_times.total == pytest.approx(0.026)
    assert sum(encoder.queue.queue_times.counts) == 2
    assert encoder.queue.run_times.total == pytest.approx(2 * 0.026)


def test_pictures_that_are_encoded_again_are_counted() -> None:
    encoder = Encoder()
    for name in ("first", "second"):
        encoder.add(name, "one", "two")
        encoder.run()
        encoder.engine.ec.clear()
    encoder.add("third", "three")
    encoder.run(until=20.0)
    counted = encoder.engine.counters()
    assert (counted["mm_encoded"], counted["mm_reencoded"]) == (5, 2)
