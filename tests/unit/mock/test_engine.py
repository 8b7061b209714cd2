"""The mock engine on virtual time: durations, order, caches, tokens that depend on nothing else."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from protocol.types import EncodeItem, EncodeRequest, MMItem
from services.mock.timing import Timing
from tests.support.mock_runs import TIMING, WORDS, Run, alone, asked, engine


def test_a_request_takes_as_long_as_its_tokens_say() -> None:
    run = alone(asked("r", list(range(20)), 3))
    assert run.times("r") == pytest.approx([0.020, 0.031, 0.042])
    assert run.tokens("r") == WORDS.answer(range(20), length=3)
    assert run.last("r").finish_reason == "length"
    run.check()


def test_prompts_longer_than_a_step_are_computed_in_chunks_beside_decoding() -> None:
    run = Run([engine(max_num_batched_tokens=8)])
    run.fleet.add(run.engines[0], asked("short", [1, 2], 9))
    run.fleet.add(run.engines[0], asked("long", list(range(30)), 1))
    run.clock.run()
    gaps = [b - a for a, b in zip(run.times("short"), run.times("short")[1:], strict=False)]
    assert max(gaps) == pytest.approx(0.011 + 0.007) and len(run.times("short")) == 9
    assert run.times("long")[0] > run.times("short")[2]


def test_no_more_than_allowed_run_at_once_and_the_more_urgent_first() -> None:
    run = Run([engine(max_num_seqs=1)])
    for name, priority in (("a", 0), ("b", 5), ("c", -5)):
        run.fleet.add(run.engines[0], asked(name, [1], 2, priority=priority))
    run.clock.run()
    assert sorted("abc", key=lambda name: run.times(name)[0]) == ["c", "a", "b"]
    assert run.times("a")[0] > run.times("c")[-1]


def test_a_shared_prefix_is_computed_once() -> None:
    timing = Timing(prefill_token_ms=1, prefill_cached_ms=0.1, decode_base_ms=10)
    run = Run([engine(timing=timing)])
    prompt = list(range(40))
    for name, tail in (("a", [1]), ("b", [2])):
        run.fleet.add(run.engines[0], asked(name, prompt + tail, 1))
        run.clock.run()
    assert run.answers["a"][0][1].cached_tokens == 0
    assert run.answers["b"][0][1].cached_tokens == 32
    assert run.times("b")[0] - run.times("a")[0] == pytest.approx(0.001 * 9 + 0.0001 * 32)


def test_another_picture_or_salt_under_the_same_tokens_shares_nothing() -> None:
    run = Run([engine()])
    prompt = [7] * 40
    for name, item, salt in (("a", "x", ""), ("b", "y", ""), ("c", "x", "s"), ("d", "x", "")):
        items = [MMItem(item, "image", 0, 20)]
        request = asked(name, prompt, 1, mm_items=items, cache_salt=salt)
        run.fleet.add(run.engines[0], request)
        run.clock.run()
    cached = {name: run.answers[name][0][1].cached_tokens for name in "abcd"}
    assert cached == {"a": 0, "b": 0, "c": 0, "d": 32}
    assert run.tokens("a") == run.tokens("d") != run.tokens("b")


def test_the_answer_of_a_turn_is_a_prefix_of_the_next() -> None:
    run = alone(asked("a", list(range(16)), 17))
    answer = run.tokens("a")
    run.fleet.add(run.engines[0], asked("b", [*range(16), *answer, 5], 1))
    run.clock.run()
    assert run.answers["b"][0][1].cached_tokens == 32


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_an_answer_can_be_continued_anywhere(cut: int) -> None:
    """With prompt and emitted tokens another worker goes on as if nothing had happened."""
    whole = alone(asked("r", [3, 1, 4], 10, n=2, seed=9))
    expected = [whole.tokens("r", index) for index in (0, 1)]
    assert expected[0] != expected[1]
    given = {1: expected[1][:cut]}
    rest = alone(asked("r", [3, 1, 4], 10, n=2, seed=9, emitted=given), port=2)
    assert given[1] + rest.tokens("r", 1) == expected[1]
    assert rest.tokens("r", 0) == []
    rest.check()


def test_greedy_answers_do_not_depend_on_the_seed() -> None:
    answers = [alone(asked("r", [1], 8, temperature=t, seed=s)).tokens("r")
               for t, s in ((0.0, 1), (0.0, 2), (1.0, 1), (1.0, 2))]  # fmt: skip
    assert answers[0] == answers[1] and len({tuple(a) for a in answers}) == 3


def test_stop_tokens_end_a_choice_but_not_before_the_minimum() -> None:
    free = alone(asked("r", [1], 40)).tokens("r")
    stop = free[4]
    first = free.index(stop)
    run = alone(asked("r", [1], 40, stop_token_ids=(stop,)))
    assert run.tokens("r") == free[: first + 1]
    assert (run.last("r").finish_reason, run.last("r").stop_reason) == ("stop", stop)
    later = alone(asked("r", [1], 40, stop_token_ids=(stop,), min_tokens=first + 2))
    assert len(later.tokens("r")) >= first + 2
    ended = alone(asked("r", [1], 40), eos_token_id=stop)
    assert ended.tokens("r") == free[: first + 1] and ended.last("r").stop_reason is None
    ignored = alone(asked("r", [1], 40, ignore_eos=True), eos_token_id=stop)
    assert ignored.tokens("r") == free


def test_steps_that_take_no_time_put_out_the_same_tokens_at_once() -> None:
    slow = alone(asked("r", [1, 2, 3], 20, n=3, seed=5))
    fast = alone(asked("r", [1, 2, 3], 20, n=3, seed=5), timing=Timing())
    for index in range(3):
        assert fast.tokens("r", index) == slow.tokens("r", index)
    assert fast.clock.now == 0.0 and len(fast.answers["r"]) == 9, "the first, the second, the rest"
    fast.check()


def test_several_steps_at_once_take_as_long_as_one_after_the_other() -> None:
    timing = Timing(prefill_token_ms=1, decode_base_ms=10, decode_request_ms=1, decode_context_ms=2)
    runs = [Run([engine(timing=timing, steps_at_once=count)]) for count in (1, 8)]
    for run in runs:
        run.fleet.add(run.engines[0], asked("a", [1] * 9, 20))
        run.fleet.add(run.engines[0], asked("b", [2] * 5, 10, n=2, seed=1))
        run.clock.run()
        run.check()
    one, many = runs
    for name, index in (("a", 0), ("b", 0), ("b", 1)):
        assert many.tokens(name, index) == one.tokens(name, index)
    assert many.clock.now == pytest.approx(one.clock.now)
    assert many.engines[0].core.counters["steps"] < 8


def test_the_youngest_is_preempted_when_blocks_run_out_and_both_end_right() -> None:
    run = Run([engine(num_blocks=6, block_size=4)])
    for name in ("old", "young"):
        run.fleet.add(run.engines[0], asked(name, [ord(name[0])] * 7, 9))
    run.clock.run()
    for name in ("old", "young"):
        assert run.tokens(name) == WORDS.answer([ord(name[0])] * 7, length=9)
    assert run.engines[0].core.scheduler.preemptions > 0
    assert run.times("old")[-1] < run.times("young")[-1]
    run.check()


def test_a_request_that_never_fits_is_refused() -> None:
    small = engine(num_blocks=4, block_size=4)
    for request in (
        asked("r", [1] * 12, 5),
        asked("r", [], 5),
        asked("r", [-1], 5),
        asked("r", [1] * 4, 1, mm_items=[MMItem("x", "image", 2, 3)]),
    ):
        with pytest.raises(InvalidRequest):
            small.add(request)
    assert len(small.core) == 0 and small.check_integrity() == []


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    run = Run([engine(max_num_seqs=1)])
    for name in ("running", "waiting"):
        run.fleet.add(run.engines[0], asked(name, [1], 100, deadline_s=0.05))
    run.clock.run()
    for name in ("running", "waiting"):
        error = run.last(name).error
        assert error is not None and error.status == 504
    assert len(run.tokens("running")) == 5 and run.tokens("waiting") == []
    run.check()


def test_late_deadlines_of_ended_requests_are_not_kept() -> None:
    run = Run([engine(timing=Timing())])
    run.fleet.add(run.engines[0], asked("first", [1], 4, deadline_s=1000.0))
    for number in range(3000):
        run.fleet.add(run.engines[0], asked(f"r{number}", [1], 4, deadline_s=600.0))
        run.clock.run(until=0.0)
    assert len(run.engines[0].core._live._deadlines) < 2000
    run.clock.run()
    assert run.clock.now == 0.0


def test_an_abort_frees_everything_and_nothing_more_is_said() -> None:
    run = Run([engine()])
    run.fleet.add(run.engines[0], asked("r", list(range(50)), 100))
    run.clock.run(until=0.2)
    said = len(run.tokens("r"))
    assert 0 < said < 100
    run.fleet.abort(run.engines[0], ["r"])
    run.clock.run()
    assert len(run.tokens("r")) == said
    run.check()


def test_one_choice_can_be_stopped_alone() -> None:
    run = Run([engine()])
    run.fleet.add(run.engines[0], asked("r", [1], 10, n=2, seed=1))
    run.clock.run(until=0.05)
    run.engines[0].abort(["r"], 0)
    run.clock.run()
    assert len(run.tokens("r", 0)) < 10 and len(run.tokens("r", 1)) == 10
    run.check()


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30), st.integers(1, 12)), max_size=25))
def test_books_agree_after_anything(operations: list[tuple[int, int, int]]) -> None:
    run = Run([engine(num_blocks=16, block_size=4, max_num_seqs=3, max_num_batched_tokens=9)])
    (only,) = run.engines
    expected: dict[str, list[int]] = {}
    for number, (kind, size, most) in enumerate(operations):
        name = f"r{number}"
        prompt = [n % 3 for n in range(size)]
        if kind <= 3:
            run.fleet.add(only, asked(name, prompt, most, priority=kind))
            expected[name] = WORDS.answer(prompt, length=most)
        elif kind == 4 and expected:
            gone = list(expected)[size % len(expected)]
            run.fleet.abort(only, [gone])
            del expected[gone]
        else:
            only.reset_caches(prefix=True)
        run.clock.run(until=run.clock.now + most / 100)
        assert only.check_integrity() == []
    run.clock.run()
    assert {name: run.tokens(name) for name in expected} == expected
    run.check()


def test_one_device_encodes_and_generates_by_turns() -> None:
    """A run of pictures holds up tokens, not beside them, and neither starves the other."""
    timing = replace(TIMING, encode_base_ms=50.0)
    run = Run([engine(role="any", timing=timing, max_encoder_patches=16)])
    (worker,) = run.engines
    run.fleet.add(worker, asked("r", [1, 2, 3, 4], 12))
    for number in range(3):
        item = EncodeItem(f"p{number}", "image", 4, data=b"x")
        run.clock.at(0.02 + number * 0.001, run.fleet.add_encode, worker,
                     EncodeRequest(f"e{number}", [item]))  # fmt: skip
    run.clock.run()
    times = run.times("r")
    gaps = [round(after - before, 3) for before, after in pairwise(times)]
    assert gaps.count(0.061) == worker.counters()["encoder_runs"] == 3, "a run, then a step"
    assert set(gaps) == {0.011, 0.061} and len(times) == 12
    run.check()
