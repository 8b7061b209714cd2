"""KV crosses engines in order with a device that computes late: nothing is read before it was
written, and nothing that arrives is written over."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.engine.engine import Engine
from services.engine.model.step_upload import fence_on
from tests.conftest import ModelDir
from tests.support.conversations import LONG
from tests.support.engine_pairs import Pair, expected
from tests.support.engines import engine
from tests.support.late_devices import late

ROUNDS = 60  # of both engines: many times what a peer takes to hear of a block and to read it
TEXT = f"{LONG} {LONG} {LONG}"


@pytest.fixture
def pair(model_dir: ModelDir, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(model_dir("qwen3"), tmp_path / "shm", prefix_caching=False)
    yield pair
    pair.settle()


def load_of(worker: Engine) -> Any:
    """The one fetch of an engine, None once it is over."""
    fetches = worker.kv.consumer._fetches  # type: ignore[union-attr]
    return next(iter(fetches.values()), None)


def test_a_cpu_needs_no_fence() -> None:
    assert fence_on("cpu") is None


def test_peers_read_what_a_step_has_written_not_what_it_will_write(pair: Pair) -> None:
    device = late(pair.prefill)
    request = pair.request(TEXT)
    pair.to_decode(request)
    pair.until(lambda: load_of(pair.decode) is not None and load_of(pair.decode).asked)
    pair.to_prefill(request)
    pair.step("prefill")
    assert device.behind == 1, "the first chunk of the prompt samples nothing"
    for _ in range(ROUNDS):
        pair.prefill.serve_peers()
        pair.step("decode")
        time.sleep(0.0005)
    assert not load_of(pair.decode).fed
    device.finish()
    pair.until(lambda: pair.prefill.serve_peers() or load_of(pair.decode).fed, "decode")
    pair.until(lambda: pair.finished("decode") == 1)
    assert pair.tokens("decode") == expected(pair, TEXT)


def test_a_handover_is_token_exact_however_late_the_device_is(pair: Pair) -> None:
    late(pair.prefill)
    request = pair.request(TEXT)
    pair.to_decode(request)
    pair.until(lambda: load_of(pair.decode) is not None and load_of(pair.decode).asked)
    pair.to_prefill(request)
    while not pair.outputs["prefill"]:
        pair.step("prefill")
        for _ in range(ROUNDS):
            pair.step("decode")
            time.sleep(0.0005)
    pair.until(lambda: pair.finished("decode") == 1)
    assert pair.tokens("decode") == expected(pair, TEXT)


def test_an_aborted_chunk_does_not_write_over_what_arrives(pair: Pair) -> None:
    """Its blocks are given to a request whose KV comes from a peer."""
    pair.decode.close()
    kv = pair.prefill.config.kv
    pair.decode = engine(
        pair.model, parts=("language",), kv=kv, num_blocks=64, max_num_batched_tokens=64,
        prefix_caching=False,
    )  # fmt: skip
    assert pair.decode.generate is not None
    device = late(pair.decode)
    request = pair.request(TEXT)
    other = pair.request(f"Count to ten. {TEXT}")
    other.request_id = "other"
    assert pair.decode.generate.add(other) == []
    pair.step("decode")
    assert device.behind == 1
    pair.decode.generate.abort(["other"])

    pair.to_prefill(request)
    pair.until(lambda: pair.finished("prefill") == 1, "prefill")
    pair.to_decode(request, pair.outputs["prefill"][-1].kv_transfer_params)
    for _ in range(ROUNDS):
        pair.prefill.step()
        if not pair.tokens("decode"):  # the next step waits for the device
            pair.decode.serve_peers()
            pair.decode.generate.advance()
        time.sleep(0.0005)
    device.finish()
    pair.until(lambda: pair.finished("decode") == 1)
    assert pair.tokens("decode") == expected(pair, TEXT)
