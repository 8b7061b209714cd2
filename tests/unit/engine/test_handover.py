"""KV from one engine to another, both in this process: growing offers, leases, and every way in
which a hand-over can go wrong."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from connectors.config import KVConfig
from protocol.types import RequestOutput
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking
from tests.support.engine_pairs import TOKENS, Pair, expected
from tests.support.engines import engine
from tests.support.reference import reference_generate


@pytest.fixture
def pair(model_dir: ModelDir, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(model_dir("qwen3"), tmp_path / "shm")
    yield pair
    pair.settle()
    assert list(tmp_path.glob("shm/*")) == []


def connected(pair: Pair) -> bool:
    """Whether decode has asked prefill for the KV of its one request."""
    fetches = pair.decode.kv.consumer._fetches  # type: ignore[union-attr]
    return any(fetch.asked for fetch in fetches.values())


def fetched_blocks(pair: Pair) -> int:
    """Blocks that have arrived at decode for a request that is still being prefilled."""
    consumer = pair.decode.kv.consumer  # type: ignore[union-attr]
    (fetch,) = consumer._fetches.values()
    return int(fetch._copies._read)


def test_blocks_move_while_prefill_still_computes(pair: Pair) -> None:
    text = f"{LONG} {LONG} {LONG}"
    request = pair.request(text)
    pair.to_decode(request)
    pair.until(lambda: connected(pair))
    pair.to_prefill(request)
    seen = set()
    while not pair.outputs["prefill"]:
        pair.step()
        time.sleep(0.005)
        if not pair.outputs["prefill"]:
            seen.add(fetched_blocks(pair))
    assert len(seen) > 2, "blocks arrived all at once"
    pair.until(lambda: pair.finished("decode") == 1)
    assert pair.tokens("prefill") == expected(pair, text)[:1]
    assert pair.tokens("decode") == expected(pair, text)
    assert pair.decode.counters()["steps"] == TOKENS - 1


def test_a_prefix_that_decode_holds_is_not_sent_again(pair: Pair) -> None:
    first = pair.request(f"{LONG} One.")
    pair.to_decode(first)
    pair.to_prefill(first)
    pair.until(lambda: pair.finished("decode") == 1)
    second = pair.request(f"{LONG} Two.")
    pair.to_decode(second)
    pair.step("decode")
    assert fetched_blocks(pair) >= len(first.token_ids) // 16 - 1
    pair.outputs = {"prefill": [], "decode": []}
    pair.to_prefill(second)
    pair.until(lambda: pair.finished("decode") == 1)
    assert pair.tokens("decode") == expected(pair, f"{LONG} Two.")


def test_all_choices_go_on_from_one_prompt(pair: Pair) -> None:
    sampling: dict[str, Any] = {"n": 3, "temperature": 1.0, "seed": 5}
    request = pair.request(**sampling)
    alone = engine(pair.model, parts=("language",), num_blocks=64)
    assert alone.generate is not None
    alone.generate.add(request)
    whole: list[RequestOutput] = []
    while len(alone.generate):
        whole += alone.step()[0]
    pair.to_decode(request)
    pair.to_prefill(request)
    pair.until(lambda: pair.finished("decode") == 3)
    for index in range(3):
        ours = [t for o in whole if o.index == index for t in o.token_ids]
        assert pair.tokens("decode", index) == ours
        assert pair.tokens("prefill", index) == ours[:1]


def test_blocks_behind_the_prompt_are_not_offered(pair: Pair) -> None:
    """Prefill was told what the client has already, and computes that too."""
    tokens = reference_generate(pair.model, asking(LONG), 40, ignore_eos=True)
    request = msgspec.structs.replace(pair.request(max_tokens=40), emitted={0: tokens[:32]})
    pair.to_decode(request)
    pair.until(lambda: connected(pair))
    pair.to_prefill(request)
    pair.until(lambda: pair.finished("decode") == 1)
    assert pair.tokens("prefill") == tokens[32:33]
    assert pair.tokens("decode") == tokens[32:]
    assert pair.decode.counters()["kv_failed"] == 0


def test_a_request_that_ends_at_once_hands_nothing_over(pair: Pair) -> None:
    stop = expected(pair)[0]
    request = pair.request(stop_token_ids=(stop,))
    pair.to_prefill(request)
    pair.until(lambda: pair.finished("prefill") == 1)
    (output,) = pair.outputs["prefill"]
    assert output.finish_reason == "stop"
    assert output.kv_transfer_params is None


def test_decode_placed_ahead_computes_itself_when_prefill_aborts(pair: Pair) -> None:
    request = pair.request()
    pair.to_decode(request)
    pair.to_prefill(request)
    pair.until(lambda: bool(pair.prefill.counters()["steps"]) and fetched_blocks(pair) > 0)
    assert pair.prefill.generate is not None
    pair.prefill.generate.abort(["r"])
    pair.until(lambda: pair.finished("decode") == 1)
    assert pair.tokens("decode") == expected(pair)
    assert pair.decode.counters()["kv_failed"] == 1


def test_decode_that_aborts_lets_prefill_go(pair: Pair) -> None:
    request = pair.request()
    pair.to_decode(request)
    pair.to_prefill(request)
    pair.until(lambda: bool(pair.prefill.counters()["steps"]) and fetched_blocks(pair) > 0)
    assert pair.decode.generate is not None
    pair.decode.generate.abort(["r"])
    pair.until(lambda: pair.finished("prefill") == 1)
    assert pair.prefill.generate is not None
    pair.prefill.generate.abort(["r"])


def test_a_preempted_prefill_is_told_and_its_request_still_right(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    pair = Pair(model_dir("qwen3"), tmp_path / "shm", num_blocks=12)
    other = pair.request("First, in line. " * 4)
    assert pair.prefill.generate is not None
    pair.prefill.generate.add(
        msgspec.structs.replace(other, request_id="older", sampling=msgspec.structs.replace(
            other.sampling, max_tokens=64))
    )  # fmt: skip
    request = pair.request()
    pair.to_decode(request)
    pair.to_prefill(request)
    pair.until(lambda: pair.finished("prefill") == 2 and pair.finished("decode") == 1)
    assert pair.tokens("decode") == expected(pair)
    pair.prefill.generate.abort(["r"])
    pair.settle()


def test_a_lapsed_lease_frees_the_producer_and_the_consumer_recomputes(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    pair = Pair(model_dir("qwen3"), tmp_path / "shm", lease_s=0.2)
    request = pair.request()
    pair.to_prefill(request)
    pair.until(lambda: pair.finished("prefill") == 1)
    (output,) = pair.outputs["prefill"]
    assert output.kv_transfer_params is not None
    pair.until(lambda: pair.prefill.gauges()["kv_cache_usage_perc"] == 0, "prefill")
    pair.to_decode(
        msgspec.structs.replace(request, emitted={0: output.token_ids}), output.kv_transfer_params
    )
    pair.until(lambda: pair.finished("decode") == 1)
    assert output.token_ids + pair.tokens("decode") == expected(pair)
    assert pair.decode.counters()["kv_failed"] == 1
    pair.settle()


def test_a_heartbeat_keeps_the_lease_of_a_request_that_waits(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    pair = Pair(model_dir("qwen3"), tmp_path / "shm")
    leases, ahead = pair.prefill.kv.producer.leases, 0.0  # type: ignore[union-attr]
    leases._clock = lambda: time.monotonic() + ahead
    request = pair.request()
    pair.to_prefill(request)
    pair.until(lambda: pair.finished("prefill") == 1)
    (output,) = pair.outputs["prefill"]
    assert pair.decode.generate is not None
    held = pair.decode.generate.scheduler.blocks.allocate(64)
    assert held is not None
    pair.to_decode(
        msgspec.structs.replace(request, emitted={0: output.token_ids}), output.kv_transfer_params
    )
    pair.until(lambda: connected(pair))
    for _ in range(4):  # more than twice a lease in all
        before, ahead = leases._leases["r"].deadline, ahead + 20.0
        pair.decode.kv.consumer._next_heartbeat = 0.0  # type: ignore[union-attr]
        pair.until(lambda before=before: leases._leases["r"].deadline > before)
    pair.decode.generate.scheduler.blocks.release(held)
    pair.until(lambda: pair.finished("decode") == 1)
    assert output.token_ids + pair.tokens("decode") == expected(pair)
    assert pair.decode.counters()["kv_failed"] == 0
    pair.settle()


def test_a_producer_that_restarts_is_another_one(pair: Pair, tmp_path: Path) -> None:
    request = pair.request()
    pair.to_prefill(request)
    pair.until(lambda: pair.finished("prefill") == 1)
    (output,) = pair.outputs["prefill"]
    pair.prefill.close()
    kv = KVConfig(transport="shm", path=str(tmp_path / "shm"), lease_s=30.0, timeout_s=1.0)
    pair.prefill = engine(pair.model, parts=("language",), kv=kv, num_blocks=64)
    pair.to_decode(
        msgspec.structs.replace(request, emitted={0: output.token_ids}), output.kv_transfer_params
    )
    pair.until(lambda: pair.finished("decode") == 1)
    assert output.token_ids + pair.tokens("decode") == expected(pair)


def test_a_refused_handle_of_an_aborted_request_harms_no_other(pair: Pair) -> None:
    """Under the policy `fail`, a request that is gone when its failure is told stays gone."""
    assert pair.decode.generate is not None
    pair.decode.generate.transfers._fail_on_error = True
    params = {**pair.prefill.ready().kv_endpoint, "remote_request_id": "r"}
    pair.to_decode(pair.request(), {**params, "remote_num_tokens": 10**6})
    pair.decode.generate.abort(["r"])
    pair.step("decode")
    assert pair.outputs["decode"] == []
