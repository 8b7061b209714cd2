"""The master's index against a dictionary of sets, and its bounds."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.master.index.expected_prefixes import ExpectedPrefixes
from services.master.index.holder_sets import (
    contains,
    mask_of,
    slots_in,
    slots_of,
    with_slot,
    without_slot,
)
from services.master.index.predicted_cache import PredictedCache
from services.master.index.prefix_index import HolderIndex, block_index
from services.master.index.prefix_runs import fill

SLOTS = 70  # more than one machine word of bits
Model = dict[int, set[int]]

keys = st.lists(st.integers(0, 12), max_size=8)
steps: st.SearchStrategy[tuple[str, int, list[int]]] = st.one_of(
    st.tuples(st.just("add"), st.integers(0, SLOTS - 1), keys),
    st.tuples(st.just("remove"), st.integers(0, SLOTS - 1), keys),
    st.tuples(st.just("drop"), st.integers(0, SLOTS - 1), st.just([])),
)


def apply(index: HolderIndex[int], model: Model, step: tuple[str, int, list[int]]) -> None:
    kind, slot, named = step
    if kind == "add":
        index.add(slot, named)
        for key in named:
            model.setdefault(key, set()).add(slot)
    elif kind == "remove":
        index.remove(slot, named)
        for key in named:
            model.get(key, set()).discard(slot)
    else:
        index.drop(slot)
        for held in model.values():
            held.discard(slot)


def prefix_of(model: Model, slot: int, prompt: list[int]) -> int:
    """Brute force: how many keys from the first on this slot holds."""
    n = 0
    while n < len(prompt) and slot in model.get(prompt[n], set()):
        n += 1
    return n


@settings(max_examples=100, deadline=None)
@given(st.lists(steps, max_size=60), keys)
def test_the_index_equals_a_brute_force_model(
    events: list[tuple[str, int, list[int]]], prompt: list[int]
) -> None:
    index = block_index(1000)
    model: Model = {}
    for step in events:
        apply(index, model, step)
    for key in range(13):
        assert slots_of(index.holders(key)) == sorted(model.get(key, set()))
    assert len(index) == sum(bool(held) for held in model.values())
    for slot in range(SLOTS):
        assert index.count(slot) == sum(slot in held for held in model.values())
    expected = [prefix_of(model, slot, prompt) for slot in range(SLOTS)]
    runs = index.match(prompt)
    assert fill(runs, SLOTS).tolist() == expected
    assert sum(mask.bit_count() for mask, _ in runs) == sum(n > 0 for n in expected), "disjoint"


stretches = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "remove", "drop"]),
        st.sampled_from([0, 1, 2, SLOTS - 1]),
        st.tuples(st.integers(0, 9), st.integers(1, 10)).map(lambda ends: list(range(*ends))),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(stretches, stretches, stretches, st.integers(0, 10))
def test_what_lies_below_continues_a_prefix(
    pool: list[tuple[str, int, list[int]]],
    memory: list[tuple[str, int, list[int]]],
    disk: list[tuple[str, int, list[int]]],
    length: int,
) -> None:
    indices, either, prompt = [block_index(1000) for _ in range(3)], list[Model](), range(length)
    for index, events in zip(indices, (pool, memory, disk), strict=True):
        own: Model = {}
        for step in events:
            apply(index, own, step)
        above = either[-1] if either else {}
        either.append({key: own.get(key, set()) | above.get(key, set()) for key in range(10)})
    blocks, *others = indices
    runs = blocks.match(prompt)
    for n in (1, 2):
        runs = blocks.further(runs, others[:n], prompt)
        expected = [prefix_of(either[n], slot, list(prompt)) for slot in range(SLOTS)]
        assert fill(runs, SLOTS).tolist() == expected
        assert sum(mask.bit_count() for mask, _ in runs) == sum(n > 0 for n in expected), "disjoint"


slots = st.one_of(st.integers(0, 40), st.sampled_from([9_999, (1 << 20) - 2, (1 << 20) - 1]))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([True] * 4 + [False]), slots), max_size=80))
def test_sets_of_any_size_are_what_was_put_in(changes: list[tuple[bool, int]]) -> None:
    code, model = 0, set[int]()
    for comes, slot in changes:
        before = code
        code = (with_slot if comes else without_slot)(code, slot)
        assert (code is before) == ((slot in model) == comes), "what changes nothing is the same"
        (model.add if comes else model.discard)(slot)
        assert slots_in(code) == slots_of(mask_of(code)) == sorted(model)
        assert contains(code, slot) == comes
    again = 0
    for slot in sorted(model, reverse=True):
        again = with_slot(again, slot)
    assert again == code, "equal sets are equal integers"


def test_a_pair_of_ten_thousand_workers_is_a_small_integer() -> None:
    pair = with_slot(with_slot(0, 9_999), 5_000)
    assert pair.__sizeof__() <= 32


def test_many_holders_take_the_wide_path() -> None:
    index: HolderIndex[int] = HolderIndex(100)
    for slot in range(1000):
        index.add(slot, range(1 + slot % 3))
    assert fill(index.match([0, 1, 2, 3]), 1000).tolist() == [1 + s % 3 for s in range(1000)]
    assert len(index.match([0, 1, 2, 3])) == 3


def test_the_index_is_bounded_and_says_what_it_refused() -> None:
    index: HolderIndex[int] = HolderIndex(10)
    index.add(0, range(15))
    index.add(1, range(15))
    assert len(index) == 10
    assert index.refused == 10
    index.remove(0, range(15))
    assert len(index) == 10, "slot 1 still holds them"
    index.drop(1)
    assert len(index) == 0


def test_churn_leaves_nothing_behind() -> None:
    index: HolderIndex[int] = HolderIndex(10_000)
    for start in range(0, 100_000, 10):
        index.add(3, range(start, start + 10))
        index.remove(3, range(start - 100, start - 90))
    assert index.count(3) == 100
    assert len(index._holdings[3].log) <= 2 * 100 + 64 + 10
    index.drop(3)
    assert (len(index), index._holdings) == (0, {})


def test_a_key_that_comes_again_is_held_once() -> None:
    index = block_index(100)
    for _ in range(3):
        index.add(0, [1, 2])
        index.remove(0, [1])
        index.add(0, [1])
    assert (index.keys(0), index.count(0)) == ([1, 2], 2)


def test_sets_made_lately_are_few() -> None:
    index = block_index(100_000)
    for slot in range(200):
        for key in range(100):
            index.add(slot, [key * 1000 + slot % 70, key])
    assert len(index._shared) <= 4096 + 2


def test_predictions_lapse_after_their_last_use() -> None:
    index: HolderIndex[int] = HolderIndex(100)
    cache = PredictedCache(index, 2, ttl_ms=100.0, limit=50)
    cache.use([1, 2, 3], 0.0)
    cache.use([1, 2], 60.0)
    cache.expire(100.0)
    assert fill(index.match([1, 2, 3]), 3).tolist() == [0, 0, 2]
    cache.expire(160.0)
    assert (len(index), len(cache)) == (0, 0)


def test_a_full_prediction_forgets_the_end_of_the_oldest_prompt_first() -> None:
    index: HolderIndex[int] = HolderIndex(100)
    cache = PredictedCache(index, 0, ttl_ms=1e9, limit=4)
    cache.use([1, 2, 3], 0.0)
    cache.use([7, 8], 1.0)
    assert [key for key in (1, 2, 3, 7, 8) if index.holders(key)] == [1, 2, 7, 8]


def test_expected_prefixes_extend_what_is_held() -> None:
    expected = ExpectedPrefixes()
    placed = expected.add(1, 0, [10, 11, 12, 13])
    assert placed is not None
    later = expected.add(1, 4, [10, 11, 12, 13, 14, 15])
    lengths = np.zeros(3)
    expected.extend(lengths, [], [10, 11, 12, 13, 14, 99])
    assert lengths.tolist() == [0, 5, 0], "the second prompt continues the first"
    lengths = np.zeros(3)
    expected.extend(lengths, [], [10, 11, 99])
    assert lengths.tolist() == [0, 2, 0]
    expected.remove(placed)
    lengths = np.zeros(3)
    expected.extend(lengths, [], [10, 11, 12, 13, 14])
    assert lengths.tolist() == [0, 0, 0], "nothing leads to the second prompt any more"
    assert later is not None
    expected.drop(1)
    assert len(expected) == 0


def test_nothing_is_expected_of_a_worker_that_has_lost_the_beginning() -> None:
    expected = ExpectedPrefixes()
    expected.add(0, 2, [1, 2, 3, 4])
    for held, found in ((1.0, 1.0), (2.0, 4.0)):
        lengths = np.array([held, 2.0])
        expected.extend(lengths, [(0b10, 2)], [1, 2, 3, 4])
        assert lengths.tolist() == [found, 2.0]


def test_a_prompt_that_is_held_whole_expects_nothing() -> None:
    assert ExpectedPrefixes().add(0, 2, [1, 2]) is None
