"""Workers of another engine that prefill and decode, of which only ends of answers are told."""

import heapq
from typing import Any

import pytest

from protocol.errors import TriptychError
from protocol.placement import Finished
from protocol.registry import InstanceInfo, Load
from services.admission.ticket import Ticket
from services.master.config import MasterConfig
from services.master.master import Master
from services.master.placement.waiting import PlacementTicket
from tests.support.master_fleets import asking, picture, place


def one_worker(**config: Any) -> Master:
    made = Master(MasterConfig(**{"seed": 1, "lease": 1e6, **config}))
    made.register(InstanceInfo("w", "prefill_decode", "http://w:1", "m", dialect="openai"), 0.0)
    return made


def queue_ms(made: Master, now: float) -> float:
    pool = made.registry.fleet("m").pools["combined"]
    return float(pool.busy_until[0]) - now * 1e3


@pytest.mark.parametrize("answer_s", [0.5, 8.0])
def test_a_fast_worker_is_not_held_to_the_flags(answer_s: float) -> None:
    """They say 5 prompts a second; it does 15, as many at once as come, and none waits there."""
    made, refused, waits = one_worker(), 0, [0.0]
    ends: list[tuple[float, str]] = []

    def begin(name: str, came: float, now: float) -> None:
        waits.append(now - came if came > 60.0 else 0.0)
        heapq.heappush(ends, (now + answer_s, name))

    def wait(ticket: PlacementTicket, name: str, came: float) -> None:
        ticket.when_ended(lambda: begin(name, came, now))

    for number in range(1800):
        came = number / 15
        while ends and ends[0][0] <= came:
            now, name = heapq.heappop(ends)
            made.finished(Finished(name, elapsed_s=answer_s, output_tokens=100), now)
            made.pump(now)
        now = came
        made.expire(now)
        if number % 15 == 0:
            made.registry.observed("w", Load(running=len(ends)), now * 1e3)
        asked = asking(f"r{number}", blocks=0, prompt_tokens=1000, max_tokens=100)
        try:
            outcome = made.schedule(asked, now)
        except TriptychError:
            refused += came > 60.0
            continue
        if isinstance(outcome, Ticket):
            wait(outcome, asked.request_id, came)
        else:
            begin(asked.request_id, came, now)
    assert (refused, max(waits)) == (0, 0.0), "once it is known"
    assert queue_ms(made, now) < 3200.0, "of the last second, as the flags say"


def test_who_leaves_after_the_first_token_takes_no_work_of_others_along() -> None:
    made = one_worker(prefill_ms_per_token=1.0, busy_queue_ms=0)
    for name in "abc":
        place(made, asking(name, blocks=0, prompt_tokens=1000))
    made.finished(Finished("a", "prefill", elapsed_s=1.0), 1.0)
    assert queue_ms(made, 1.0) == pytest.approx(2000.0)
    made.finished(Finished("a", aborted=True), 1.1)
    assert queue_ms(made, 1.1) == pytest.approx(1900.0)


def test_an_end_without_a_first_token_before_it_leaves_no_more_than_was_reckoned() -> None:
    made = one_worker(prefill_ms_per_token=1.0, busy_queue_ms=0)
    for name in "abc":
        place(made, asking(name, blocks=0, prompt_tokens=1000))
    made.finished(Finished("a", elapsed_s=2.5, output_tokens=9), 2.5)
    assert queue_ms(made, 2.5) == pytest.approx(500.0)
    made.finished(Finished("c", elapsed_s=2.6, output_tokens=9), 2.6)
    assert queue_ms(made, 2.6) == pytest.approx(0.0), "b came before it"


def test_what_no_proxy_reports_as_ended_does_not_count_for_good() -> None:
    made = one_worker(request_ttl=20.0)
    for number in range(20):
        place(made, asking(f"r{number}", blocks=0, prompt_tokens=1000))
    pool = made.registry.fleet("m").pools["combined"]
    for now in (1.0, 10.0, 30.0, 31.0):
        made.expire(now)
        made.registry.observed("w", Load(), now * 1e3)
    assert (pool.requests[0], pool.queued_tokens[0], pool.context_tokens[0]) == (0.0, 0.0, 0.0)


def test_prompts_that_wait_for_their_embeddings_are_work_to_come() -> None:
    """A probe that finds no prompt waiting at the worker does not see them."""
    made = one_worker(prefill_ms_per_token=1.0, encode_ms_per_token=10.0, busy_queue_ms=0)
    made.register(InstanceInfo("e", "encode", "http://e:1", "m", dialect="openai"), 0.0)
    for number in range(3):
        media = [picture(f"picture{number}", tokens=100)]
        place(made, asking(f"r{number}", blocks=0, prompt_tokens=1000, items=media))
    made.registry.observed("w", Load(running=3), 1000.0)
    assert queue_ms(made, 1.0) == pytest.approx(2000.0)
