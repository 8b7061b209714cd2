"""KV below a mock worker's pool, on virtual time: what waits, how long, and what is computed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.mock.timing import Timing
from tests.support.mock_runs import WORDS, Run, asked, engine

PROMPTS = {name: [seed] * 40 for seed, name in enumerate("abc", start=5)}
"""Two full blocks and half of one each."""


def turns(names: str, host_ms: float, **options: int) -> tuple[Run, list[float]]:
    """One prompt after the other, on a pool for one of them; how long each took."""
    timing = Timing(prefill_token_ms=1.0, kv_host_block_ms=host_ms, kv_disk_block_ms=4.0)
    run = Run([engine(timing=timing, num_blocks=5, **{"host_blocks": 64, **options})])
    took = []
    for number, name in enumerate(names):
        begun = run.clock.now
        run.fleet.add(run.engines[0], asked(f"{number}", PROMPTS[name], 1))
        run.clock.run()
        took.append(run.times(f"{number}")[0] - begun)
        assert run.tokens(f"{number}") == WORDS.answer(PROMPTS[name], length=1)
    run.check()
    return run, took


def test_a_prompt_waits_for_its_kv_and_computes_the_rest() -> None:
    run, took = turns("abcab", host_ms=2.0)
    assert took == pytest.approx([0.040, 0.040, 0.040, 0.012, 0.012])
    assert run.answers["3"][0][1].cached_tokens == 32
    assert run.engines[0].counters()["kv_host_onboarded_blocks"] == 4


def test_a_tier_that_is_slower_than_computing_costs_one_wait() -> None:
    run, took = turns("abcabc", host_ms=20.0)
    assert took[3] == pytest.approx(0.032 + 0.040), "no longer than computing the two blocks"
    assert took[4:] == pytest.approx([0.040] * 2), "what it takes is known from then on"
    assert run.engines[0].counters()["kv_onboards_given_up"] == 1


def test_what_host_memory_has_no_room_for_comes_from_disk() -> None:
    run, took = turns("abca", host_ms=2.0, host_blocks=2, disk_blocks=64)
    assert took[3] == pytest.approx(0.008 + 0.008)
    assert run.engines[0].counters()["kv_disk_hit_tokens"] == 32


def at_once(host_ms: float, requests: int) -> tuple[Run, list[float]]:
    """Prompts of ten blocks each that host memory holds, asked all at once; how many blocks of the
    pool, which has room for all, are used from then on."""
    timing = Timing(prefill_token_ms=1.0, kv_host_block_ms=host_ms)
    sizes = {"num_blocks": 12 * requests, "host_blocks": 1000, "max_num_batched_tokens": 64}
    run = Run([engine(timing=timing, **sizes)])
    (one,) = run.engines
    prompts = [[5 + number] * 165 for number in range(requests)]
    for number, prompt in enumerate(prompts):
        run.fleet.add(one, asked(f"a{number}", prompt, 1))
        run.clock.run()
    one.blocks.reset_prefix_cache()
    run.fleet.add(one, asked("measured", prompts[0], 1))
    run.clock.run()
    one.blocks.reset_prefix_cache()
    used = []
    for number, prompt in enumerate(prompts):
        run.fleet.add(one, asked(f"b{number}", prompt, 1))
    for _ in range(100 * requests):
        run.clock.run(until=run.clock.now + 0.002)
        used.append(one.blocks.usage * sizes["num_blocks"])
    run.clock.run()
    run.check()
    return run, used


@pytest.mark.parametrize(("host_ms", "requests"), [(1.0, 10), (12.8, 20)])
def test_prompts_at_once_wait_for_their_turns(host_ms: float, requests: int) -> None:
    """A fast tier brings all of them; one little faster than computing brings some, while
    the others are computed. What is on its way takes little of the pool."""
    run, used = at_once(host_ms, requests)
    counters = run.engines[0].counters()
    assert counters["kv_onboards_given_up"] == 0
    brought = counters["kv_host_hit_tokens"] - 160
    assert brought == 1600 if host_ms == 1.0 else 5 * 160 <= brought < 20 * 160
    assert max(used) <= 60 + 12, "half of the pool, and one that runs"


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.booleans()), max_size=12),
    st.integers(4, 9), st.integers(1, 4), st.integers(0, 4), st.floats(0.0, 30.0),
)  # fmt: skip
def test_nothing_leaks_of_any_requests_and_aborts(
    asking: list[tuple[str, int, bool]], blocks: int, host: int, disk: int, host_ms: float
) -> None:
    timing = Timing(
        prefill_token_ms=1.0, decode_base_ms=3.0, kv_host_block_ms=host_ms, kv_disk_block_ms=5.0
    )
    sizes = {"num_blocks": blocks, "host_blocks": host, "disk_blocks": disk}
    run = Run([engine(timing=timing, **sizes)])
    for number, (name, length, aborted) in enumerate(asking):
        run.fleet.add(run.engines[0], asked(f"{number}", PROMPTS[name][:length], 20))
        if aborted:
            run.clock.run(until=run.clock.now + 0.010)
            run.fleet.abort(run.engines[0], [f"{number}"])
    run.clock.run()
    run.check()
    for number, (name, length, aborted) in enumerate(asking):
        if not aborted:
            expected = WORDS.answer(PROMPTS[name][:length], length=20)
            assert run.tokens(f"{number}") == expected
