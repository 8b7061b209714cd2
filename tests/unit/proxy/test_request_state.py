"""What is left of a request after each attempt, and whether there is another."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import RequestAborted, UpstreamError
from protocol.types import GenerateRequest, RequestOutput, SamplingParams
from proxy.tokens.request_state import TokensRequest
from proxy.upstream.failures import failure_of


def state(n: int = 1, max_tokens: int = 8, seconds: float = 60.0) -> TokensRequest:
    request = GenerateRequest("r", [1, 2, 3], SamplingParams(max_tokens=max_tokens, n=n))
    deadline = time.monotonic() + seconds
    return TokensRequest(deadline=deadline, request_id="r", request=request, media={})


def test_the_first_attempt_is_the_request_itself() -> None:
    wanted = state(n=2).wanted()
    assert wanted.request_id == "r" and wanted.emitted == {}


def test_a_further_attempt_goes_on_with_the_choices_that_have_not_ended() -> None:
    going = state(n=3)
    going.passed([RequestOutput("r", 0, [5, 6]), RequestOutput("r", 1, [7], finish_reason="stop")])
    going.attempt += 1
    wanted = going.wanted()
    assert wanted.emitted == {0: [5, 6], 2: []}
    assert wanted.request_id != "r"
    going.passed([RequestOutput("r", i, [8], finish_reason="length") for i in (0, 2)])
    assert going.complete


def test_prompt_tokens_from_a_cache_are_counted_once() -> None:
    going = state()
    (first,) = going.passed([RequestOutput("r", 0, [5], cached_tokens=16)])
    assert first.cached_tokens == 16
    (again,) = going.passed([RequestOutput("r", 0, [6], cached_tokens=19)])
    assert again.cached_tokens is None


def test_progress_forgives_the_failures_before_it() -> None:
    going = state(max_tokens=100)
    going.in_a_row = going.failures = 3
    going.lost, going.waiting_since = True, 1.0
    going.passed([RequestOutput("r", 0, [5])])
    assert (going.in_a_row, going.failures, going.lost) == (0, 0, False)
    assert going.waiting_since is None


@pytest.mark.parametrize(
    "output",
    [
        RequestOutput("r", 1, [5]),
        RequestOutput("r", 0, [5] * 9),
        RequestOutput("r", 0, [-1]),
        RequestOutput("r", 0, [1 << 40]),
        RequestOutput("r", 0, finish_reason="abort"),
        RequestOutput("r", 0, finish_reason="error"),
    ],
)
def test_what_a_worker_cannot_have_meant_is_its_fault(output: RequestOutput) -> None:
    with pytest.raises((UpstreamError, RequestAborted)) as error:
        state().passed([output])
    assert failure_of(error.value).charged


def test_of_steps_that_cannot_be_nothing_is_taken() -> None:
    going = state(n=2, max_tokens=2)
    going.passed([RequestOutput("r", 0, [5])])
    for wrong in (
        [RequestOutput("r", 1, [6], finish_reason="stop"), RequestOutput("r", 5, [7])],
        [RequestOutput("r", 1, [6]), RequestOutput("r", 0, [7, 8, 9])],
        [RequestOutput("r", 0, [6], finish_reason="stop"), RequestOutput("r", 0, [7])],
    ):
        with pytest.raises(UpstreamError):
            going.passed(wrong)
    assert going.wanted().emitted == {0: [5], 1: []}
    going.passed([RequestOutput("r", i, [8], finish_reason="length") for i in (0, 1)])
    assert going.complete


@given(
    st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=12),
    st.sets(st.integers(0, 11)),
)
def test_the_tokens_of_all_attempts_are_those_of_one(
    steps: list[list[int]], breaks: set[int]
) -> None:
    """However often it is broken, an attempt is asked for what the client lacks and no more."""
    going = state(max_tokens=1000)
    seen: list[int] = []
    for number, tokens in enumerate(steps):
        if number in breaks:
            going.attempt += 1
            assert going.wanted().emitted.get(0, []) == seen
        for output in going.passed([RequestOutput("r", 0, list(tokens))]):
            seen += output.token_ids
    assert seen == [token for tokens in steps for token in tokens]
