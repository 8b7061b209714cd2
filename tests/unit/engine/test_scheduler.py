"""A step runs requests that decode first, then prompts with what is left; all end some time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ConfigError
from services.engine.scheduling.limits import Limits
from tests.support.scheduler_cases import SIZE, Case, pictures_of, prompts


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_the_last_token_is_computed_though_the_whole_prompt_is_cached(blocks: int) -> None:
    """The cache has no logits to draw the first token from."""
    case = Case(Limits(64, 256))
    case.add(blocks * SIZE, 1)
    assert [(c.start, c.end) for c in case.step()] == [(0, blocks * SIZE)]
    case.arrivals -= 1  # the same prompt again
    again = case.add(blocks * SIZE, 1)
    assert [(c.start, c.end) for c in case.step()] == [((blocks - 1) * SIZE, blocks * SIZE)]
    assert again.num_cached == (blocks - 1) * SIZE and again.num_output == 1
    case.check()


def test_beside_requests_that_decode_prompts_get_no_more_than_they_may() -> None:
    case = Case(Limits(64, 256, max_prefill_beside_decode=40))
    alone, long = case.add(300), case.add(500)
    assert prompts(case.step()) == 256, "there is no request to hold up"
    assert prompts(case.step()) == 256 and alone.num_output == 1
    while long.num_left > 1:
        chunks = case.step()
        assert alone in {chunk.request for chunk in chunks}
        assert prompts(chunks) <= 40


def test_the_oldest_prompt_gets_on_however_many_decode() -> None:
    """A step has room for fewer tokens than there may be requests."""
    case = Case(Limits(64, 8, max_prefill_beside_decode=4))
    for _ in range(7):
        case.add(1)
    while len(case.scheduler.running) < 7 or case.scheduler.waiting:
        case.step()
    long, late = case.add(30), [case.add(1) for _ in range(20)]
    for _ in range(30):
        assert len(case.step()) <= 8
    assert long.num_output >= 1
    assert all(request in case.scheduler.waiting for request in late), "there are no more slots"


def test_beside_requests_that_decode_prompts_get_no_more_than_there_is_time_for() -> None:
    case = Case(Limits(64, 256, max_prefill_beside_decode=40))
    first = case.add(300)
    assert prompts(case.step(most=7)) == 256, "there is no request to hold up"
    case.step()
    long = case.add(100)
    assert first.num_left == 1 and prompts(case.step(most=7)) == 7
    assert prompts(case.step(most=70)) == 40, "the limit holds as well"
    while not long.num_output:
        assert prompts(case.step(most=7)) <= 7


@pytest.mark.parametrize("wrong", [(0, 8, 0), (8, 0, 0), (8, 8, -1)])
def test_limits_under_which_some_would_never_run_are_refused(wrong: tuple[int, int, int]) -> None:
    seqs, tokens, beside = wrong
    with pytest.raises(ConfigError, match="max_"):
        Limits(seqs, tokens, max_prefill_beside_decode=beside)


def test_a_request_that_decodes_leaves_the_step_if_an_older_prompt_needs_its_blocks() -> None:
    case = Case(Limits(8, 17), num_blocks=6)
    young = case.add(16, priority=1)
    case.step()
    old = case.add(80, 4)
    chosen = []
    while old.num_output == 0:
        chunks = case.step()
        assert all(len(c.request.blocks) * SIZE >= c.end for c in chunks)
        chosen.append([chunk.request for chunk in chunks])
        case.check()
    assert chosen == [[young, old]] * 4 + [[old]]
    assert case.scheduler.preemptions == 1 and young in case.scheduler.waiting


REQUESTS = st.tuples(
    st.integers(1, 80),  # tokens of the prompt
    st.integers(1, 12),  # of the output
    st.integers(0, 2),  # priority
    st.integers(0, 9),  # steps of waiting for KV from a tier
    st.lists(st.integers(0, 3), max_size=2),  # pictures
)


@pytest.mark.parametrize("steps", [1, 4])
@settings(max_examples=100, deadline=None)
@given(requests=st.lists(REQUESTS, max_size=14))
def test_all_end_and_books_agree_for_any_requests(
    steps: int, requests: list[tuple[int, int, int, int, list[int]]]
) -> None:
    limits = Limits(6, 48, max_prefill_beside_decode=10, decode_steps=steps)
    case = Case(limits, num_blocks=6, embedding_tokens=32)
    for item in pictures_of([0, 1, 2, 3], 90):
        case.store_picture(item)
    added = []
    for length, most, priority, awaiting, numbers in requests:
        items = pictures_of(numbers, length)
        added.append(case.add(length, most, *items, priority=priority))
        case.awaiting[added[-1].key] = awaiting
        chunks = case.step()
        assert sum(chunk.count for chunk in chunks) <= 48
        case.check()
    left = 3000
    while any(request.num_output < request.sampling.max_tokens for request in added):
        case.step()
        case.check()
        left -= 1
        assert left, "somebody starves"
    assert case.scheduler.blocks.usage == 0.0


def test_what_is_finished_gives_its_blocks_back_or_hands_them_over() -> None:
    case = Case(Limits(64, 256))
    gone, kept = case.add(40), case.add(40)
    case.step()
    free = case.scheduler.blocks.num_free
    blocks = list(kept.blocks)
    assert (
        case.scheduler.finish(gone) == []
        and case.scheduler.finish(kept, keep_blocks=True) == blocks
    )
    assert case.scheduler.blocks.num_free == free + len(blocks), "as many as the other had"
    assert gone.blocks == kept.blocks == [] and not case.scheduler.keys()
    assert case.scheduler.blocks.check_integrity([blocks]) == []
