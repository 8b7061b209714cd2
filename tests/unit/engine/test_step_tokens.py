"""A step's arrays beside the same written out request by request."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.keys import BlockKeyChain
from protocol.types import GenerateRequest, SamplingParams
from services.engine.model.step_tokens import BlockTables, StepTokens, rotary_positions
from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.request import Request


def request(prompt: int, *, dimensions: int = 1, delta: int = 0) -> Request:
    """Of any tokens; its rotary positions are 1000, 1001, … so that they are told from places."""
    positions = np.tile(np.arange(1000, 1000 + prompt), (dimensions, 1))
    source = GenerateRequest("r", [7] * prompt, SamplingParams())
    keys = BlockKeyChain(b"", 4, [])
    return Request(source, 0, 0, [7] * prompt, positions, delta, keys)


@pytest.mark.parametrize("dimensions", [1, 3])
def test_positions_of_prompts_are_known_and_later_ones_follow_the_delta(dimensions: int) -> None:
    deltas = (5, -2, 30)
    first, second, third = (request(10, dimensions=dimensions, delta=delta) for delta in deltas)
    chunks = [Chunk(first, 3, 4), Chunk(second, 12, 1), Chunk(third, 8, 4)]
    tokens = StepTokens.of(chunks)
    assert tokens.starts == [0, 4, 5, 9]
    assert tokens.owner.tolist() == [0, 0, 0, 0, 1, 2, 2, 2, 2]
    assert tokens.index.tolist() == [3, 4, 5, 6, 12, 8, 9, 10, 11]
    expected = [1003, 1004, 1005, 1006, 12 - 2, 1008, 1009, 10 + 30, 11 + 30]
    assert rotary_positions(chunks, tokens).tolist() == [expected] * dimensions


def written_out(requests: Sequence[Request]) -> list[list[int]]:
    width = max(len(request.blocks) for request in requests)
    return [request.blocks + [0] * (width - len(request.blocks)) for request in requests]


CHANGES = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["grow", "replace", "absent"])), max_size=12
)


@given(st.lists(CHANGES, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_tables_follow_what_becomes_of_the_blocks(
    steps: list[list[tuple[int, str]]], random: Random
) -> None:
    requests = [request(4) for _ in range(5)]
    tables = BlockTables()
    count = 0
    for changes in steps:
        there = [True] * len(requests)
        for which, change in changes:
            there[which] = change != "absent"
            if change == "replace":  # as after a preemption
                requests[which].blocks = []
            count += 1
            requests[which].blocks += [count] * (1 + count % 3)
        chosen = [r for r, present in zip(requests, there, strict=True) if present and r.blocks]
        random.shuffle(chosen)
        if chosen:
            assert tables.of(chosen).tolist() == written_out(chosen)


def test_a_table_that_was_given_out_is_not_written_to_again() -> None:
    one = request(4)
    one.blocks += [3, 4]
    tables = BlockTables()
    given_out = tables.of([one])
    one.blocks.append(5)
    tables.of([one])
    assert given_out.tolist() == [[3, 4]]
