"""Workers that are not measured are taken to be like those that are."""

import heapq

import msgspec
import pytest

from protocol.kv_events import BlockStored
from protocol.placement import Finished, ScheduleRequest
from protocol.registry import Heartbeat, InstanceInfo, Load, Rates
from services.master.config import MasterConfig
from services.master.fleet.learned_rates import RateLearner, learner
from services.master.fleet.shared_rates import share
from services.master.master import Master
from services.master.placement.refusals import TooLate
from tests.support.master_fleets import (
    LOAD,
    PROMPT,
    add,
    asking,
    hear,
    master,
    picture,
    place,
    prefill_of,
)

TOKEN_MS = 0.25


def new() -> RateLearner:
    return learner(1.0, 20.0, 0.4)


class Fleet:
    """Workers that are asked for 1000 tokens again and again, and looked at each second."""

    def __init__(self, workers: int) -> None:
        self.learners = [new() for _ in range(workers)]
        self.now = 0.0
        self.long = -1  # a worker that has one long call under way

    def work(self, worker: int, ms: float) -> None:
        self.learners[worker].computed(ms, 1000, self.now + ms)

    def pass_seconds(self, seconds: int, *busy: int, ms: float = 1000 * TOKEN_MS) -> None:
        for _ in range(seconds):
            for _ in range(2):
                for worker in busy:
                    self.work(worker, ms)
                self.now += 5000 * TOKEN_MS  # a call that has ended before the next begins
            share(
                self.learners,
                [worker not in (*busy, self.long) for worker in range(len(self.learners))],
            )

    def takes_ms(self, worker: int) -> float:
        rates = self.learners[worker].rates()
        return rates.prefill_base_ms + 1000 * rates.prefill_ms_per_token


def test_one_that_was_never_asked_is_like_the_others() -> None:
    fleet = Fleet(3)
    fleet.pass_seconds(20, 0, 1)
    assert fleet.takes_ms(2) == pytest.approx(1000 * TOKEN_MS, rel=0.1)


def test_one_long_call_is_not_all_that_counts() -> None:
    fleet = Fleet(3)
    fleet.work(2, 4000 * TOKEN_MS)
    fleet.pass_seconds(1, 0, 1)
    fleet.work(2, 1000 * TOKEN_MS)  # only now the first counts
    fleet.pass_seconds(10, 0, 1)
    assert 1000 * TOKEN_MS < fleet.takes_ms(2) < 3500 * TOKEN_MS


def test_one_that_was_slow_is_tried_again() -> None:
    fleet = Fleet(3)
    fleet.pass_seconds(30, 2, ms=4000 * TOKEN_MS)
    fleet.pass_seconds(20, 0, 1)
    assert fleet.takes_ms(2) > 1500 * TOKEN_MS, "what was measured is kept for a while"
    fleet.pass_seconds(60, 0, 1)
    assert fleet.takes_ms(2) == pytest.approx(1000 * TOKEN_MS, rel=0.15)


def test_one_that_is_slow_is_known_as_long_as_it_works() -> None:
    fleet = Fleet(3)
    for _ in range(60):
        fleet.work(2, 4000 * TOKEN_MS)
        fleet.pass_seconds(1, 0, 1)
    assert fleet.takes_ms(2) == pytest.approx(4000 * TOKEN_MS, rel=0.15)
    assert fleet.takes_ms(0) == pytest.approx(1000 * TOKEN_MS, rel=0.15)


def test_one_that_is_slow_is_known_during_its_longest_call() -> None:
    fleet = Fleet(3)
    for _ in range(60):
        fleet.work(2, 4000 * TOKEN_MS)
        fleet.pass_seconds(1, 0, 1)
    fleet.long = 2
    fleet.pass_seconds(600, 0, 1)
    assert fleet.takes_ms(2) == pytest.approx(4000 * TOKEN_MS, rel=0.15)


def test_nothing_is_forgotten_while_none_works() -> None:
    fleet = Fleet(2)
    for _ in range(60):
        fleet.work(1, 4000 * TOKEN_MS)
        fleet.pass_seconds(1, 0)
    fleet.pass_seconds(3600)
    assert fleet.takes_ms(1) == pytest.approx(4000 * TOKEN_MS, rel=0.15)


def test_an_encoder_whose_first_pictures_took_long_gets_its_part() -> None:
    """Three encoders that one master chooses from, 80 % busy on virtual time. Requests that would
    miss their objective are refused, so that no queue grows until a slow encoder is chosen."""
    made = Master(MasterConfig(seed=1, lease=1e6, expected_tokens=1, ttft_slo=1.0))
    roles = {"e0": "encode", "e1": "encode", "e2": "encode", "p": "prefill", "d": "decode"}
    for name, role in roles.items():
        info = InstanceInfo(name, role, f"http://{name}:1", "m", dialect="openai")  # type: ignore[arg-type]
        made.register(info, 0.0)
    free, chosen, refused = dict.fromkeys(roles, 0.0), dict.fromkeys(roles, 0), 0
    ends: list[tuple[float, float, str]] = []
    for number in range(1000):
        now = number * 0.35 / 3 / 0.8
        while ends and ends[0][0] <= now:
            ended, took, name = heapq.heappop(ends)
            made.finished(Finished(name, "encode", [name], elapsed_s=took), ended)
            made.finished(Finished(name), ended)
        made.expire(now)
        name = f"r{number}"
        items = [picture(name, tokens=256)]
        asked = ScheduleRequest(name, 300, model="m", predicted=True, max_tokens=1, items=items)
        try:
            encoder = place(made, asked, now).encoders[0].target
        except TooLate:
            refused += 1
            continue
        assert encoder is not None
        at = encoder.instance_id
        slow = 4.0 if at == "e2" and not chosen[at] else 1.0
        chosen[at] += 1
        free[at] = max(free[at], now) + 0.35 * slow
        heapq.heappush(ends, (free[at], free[at] - now, name))
    assert refused < 50, refused
    assert min(chosen[name] for name in ("e0", "e1", "e2")) > 250, chosen


@pytest.mark.parametrize("kind", ["prefill", "pdfusion"])
def test_what_is_cached_is_used_though_only_its_owner_has_measured_itself(kind: str) -> None:
    """On a slow machine it is far slower than the flags say, but so are the others."""
    made = master("decode")
    for name in ("p0", "p1", "p2"):
        add(made, name, kind, load=Load(free_blocks=1000, total_blocks=1000))
    made.expire(0.1)
    measured = msgspec.structs.replace(LOAD, rates=Rates(prefill_ms_per_token=50.0))
    made.heartbeat(Heartbeat("p1", load=measured), 0.2)
    hear(made, "p1", BlockStored(list(PROMPT), None, [], 16))
    made.expire(0.3)
    assert prefill_of(place(made, asking("r", prompt_tokens=176), 0.3)) == "p1"


def test_of_workers_that_measure_themselves_the_middle_one_counts() -> None:
    fleet = Fleet(2)
    lines: list[tuple[float, float]] = [(0.0, 9.0), (100.0, 0.3), (0.0, 0.1)]
    assert share(fleet.learners, [True, True], lines) == [True, True]
    assert fleet.takes_ms(0) == pytest.approx(400.0, rel=0.01)
    assert share(fleet.learners, [True, True], lines) == [False, False], "no news"
