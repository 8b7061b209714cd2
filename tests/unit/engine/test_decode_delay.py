"""How a step's time is shared among pictures and prompts while others decode."""

import pytest

from services.engine.scheduling.chunks import Work
from services.engine.scheduling.decode_delay import DecodeDelay

DECODE_S, TOKEN_S = 0.02, 0.001
BOUND_S = 0.1


def learned(delay: DecodeDelay) -> DecodeDelay:
    """It has seen steps of both kinds."""
    for _ in range(20):
        delay.computed(Work(requests=3), DECODE_S)
        delay.computed(Work(computed=100, requests=3), DECODE_S + 100 * TOKEN_S)
    return delay


def test_prompts_get_what_there_is_time_for() -> None:
    delay = learned(DecodeDelay(BOUND_S, 2048))
    delay.begin(decoding=True)
    assert delay.prompt_tokens == pytest.approx(BOUND_S / TOKEN_S, abs=1)
    delay.spent(0.06)
    assert delay.prompt_tokens == pytest.approx(0.04 / TOKEN_S, abs=1)
    delay.spent(0.06)
    assert delay.prompt_tokens == 16, "a prompt gets on, however late the step is"


def test_a_chunk_learns_what_it_may_be_although_the_decodes_beside_it_take_longer() -> None:
    """Else small chunks look dear and stay small."""
    delay = DecodeDelay(BOUND_S, 2048)
    delay.computed(Work(computed=16), 10.0)  # a first step, cold
    for _ in range(40):
        delay.computed(Work(requests=3), DECODE_S)
        delay.begin(decoding=True)
        tokens = delay.prompt_tokens
        assert tokens is not None
        delay.computed(Work(computed=tokens, requests=3), DECODE_S + tokens * TOKEN_S)
    assert tokens == pytest.approx(BOUND_S / TOKEN_S, rel=0.05)


def test_pictures_leave_prompts_half_of_the_time_and_take_all_where_there_are_none() -> None:
    delay = DecodeDelay(BOUND_S, 2048)
    delay.computed(Work(requests=1), DECODE_S)
    delay.begin(decoding=True)
    assert delay.for_pictures_s == BOUND_S
    delay.computed(Work(computed=5, requests=1), DECODE_S)
    delay.begin(decoding=True)
    assert delay.for_pictures_s == BOUND_S / 2


@pytest.mark.parametrize(("bound_s", "decoding"), [(0.0, True), (BOUND_S, False)])
def test_nothing_is_bounded_where_none_decodes_or_no_bound_is_asked_for(
    bound_s: float, decoding: bool
) -> None:
    delay = learned(DecodeDelay(bound_s, 2048))
    delay.begin(decoding=decoding)
    delay.spent(1.0)
    assert delay.for_pictures_s == float("inf") and delay.prompt_tokens is None
