"""How long requests spend in each stage of an engine, on virtual time: each counts once."""

from typing import Any

import msgspec

from protocol.histogram import Histogram
from services.engine.reports import histograms_of
from services.mock.engine import Engine
from services.mock.kv_offers import kv_ref
from tests.support.mock_runs import Run, alone, asked, engine, pair

PROMPT = list(range(40))
HAND_OVER = {"do_remote_decode": True}
STEP = 11  # milliseconds that decoding one request takes; a prompt takes one a token


def seen(of: Engine, name: str) -> tuple[int, float]:
    """(observations, their sum: of tokens, or of milliseconds)."""
    found: Histogram = histograms_of(of)[name]
    return sum(found.counts), round(found.total * (1e3 if name.endswith("_seconds") else 1), 3)


def handed_over(**more: Any) -> tuple[Engine, Engine]:
    """The engines of a pair that has served a request: decode had asked for the KV at once."""
    run, prefill, decode = pair()
    request = asked("r", PROMPT, 6, **more)
    ahead = kv_ref(prefill.settings).to_params() | {"remote_request_id": "r"}
    run.fleet.add(decode, msgspec.structs.replace(request, kv_transfer_params=ahead))
    run.fleet.add(prefill, msgspec.structs.replace(request, kv_transfer_params=HAND_OVER))
    run.clock.run()
    run.check()
    return prefill, decode


def test_each_stage_lasts_as_long_as_it_took() -> None:
    run = Run([engine(max_num_seqs=1)])
    (worker,) = run.engines
    for name, first in (("a", 0), ("b", 100)):
        run.fleet.add(worker, asked(name, [first + token for token in PROMPT], 5))
    run.clock.run()
    whole = 40 + 4 * STEP
    assert seen(worker, "request_queue_time_seconds") == (2, whole), "b waits for a"
    assert seen(worker, "request_prefill_time_seconds") == (2, 2 * 40)
    assert seen(worker, "request_decode_time_seconds") == (2, 2 * 4 * STEP)
    assert seen(worker, "request_inference_time_seconds") == (2, 2 * whole)
    assert seen(worker, "request_time_per_output_token_seconds") == (2, 2 * STEP)
    assert seen(worker, "request_prompt_tokens") == (2, 80)
    assert seen(worker, "request_generation_tokens") == (2, 10)
    assert seen(worker, "request_kv_wait_seconds")[0] == 0


def test_a_request_that_is_handed_over_counts_once_in_each_stage() -> None:
    prefill, decode = handed_over()
    assert seen(prefill, "request_queue_time_seconds") == (1, 0)
    assert seen(prefill, "request_prefill_time_seconds") == (1, 40)
    assert seen(prefill, "request_inference_time_seconds") == (1, 40)
    assert seen(prefill, "request_prompt_tokens") == (1, 40)
    for name in ("decode_time_seconds", "time_per_output_token_seconds", "generation_tokens"):
        assert seen(prefill, f"request_{name}")[0] == 0, name
    for name in ("queue_time_seconds", "prefill_time_seconds", "prompt_tokens"):
        assert seen(decode, f"request_{name}")[0] == 0, name
    waits, waited = seen(decode, "request_kv_wait_seconds")
    assert waits == 1 and waited > 40
    assert seen(decode, "request_decode_time_seconds") == (1, 5 * STEP)
    assert seen(decode, "request_inference_time_seconds") == (1, 5 * STEP)
    assert seen(decode, "request_time_per_output_token_seconds") == (1, STEP)
    assert seen(decode, "request_generation_tokens") == (1, 6)


def test_choices_share_a_prompt_and_have_an_output_each() -> None:
    (fused,) = alone(asked("r", PROMPT, 6, n=3, seed=1)).engines
    for prefill, decode in (handed_over(n=3, seed=1), (fused, fused)):
        assert seen(prefill, "request_prompt_tokens") == (1, 40)
        assert seen(prefill, "request_prefill_time_seconds") == (1, 40)
        assert seen(decode, "request_generation_tokens") == (3, 18)
        assert seen(decode, "request_decode_time_seconds")[0] == 3


def test_a_request_that_starts_again_has_waited_once() -> None:
    run = Run([engine(num_blocks=8, block_size=4, prefix_caching=False)])
    (worker,) = run.engines
    for name in "ab":
        run.fleet.add(worker, asked(name, list(range(12)), 12))
    run.clock.run()
    assert worker.counters()["preemptions"] > 0
    for name in ("queue_time_seconds", "prefill_time_seconds", "prompt_tokens"):
        assert seen(worker, f"request_{name}")[0] == 2, name
    assert worker.core.scheduler.started == []


def test_one_that_is_aborted_has_no_length() -> None:
    run = Run([engine()])
    (worker,) = run.engines
    run.fleet.add(worker, asked("r", PROMPT, 50))
    run.clock.run(until=0.1)
    worker.abort(["r"])
    run.clock.run()
    assert seen(worker, "request_prompt_tokens") == (1, 40)
    assert seen(worker, "request_generation_tokens")[0] == 0
    assert seen(worker, "request_inference_time_seconds")[0] == 0
