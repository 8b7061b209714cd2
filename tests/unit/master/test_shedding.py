"""Past capacity the master refuses the largest requests first, where an operator wants that."""

import random
from typing import Any

import pytest

from protocol.errors import TriptychError
from protocol.placement import Placement, ScheduleRequest
from services.master.config import MasterConfig
from services.master.fleet.fleet import Fleet
from services.master.placement.refusals import AllBusy, TooLarge, TooLate
from services.master.placement.shedding import Shedding, prices, work_of
from tests.support.master_fleets import asking, master, picture
from tests.support.virtual_fleet import TPOT_SLO_S, TTFT_SLO_S, VirtualFleet

OBJECTIVES: dict[str, Any] = {"ttft_slo": TTFT_SLO_S, "tpot_slo": TPOT_SLO_S}
LARGEST = MasterConfig(refuse_first="largest", **OBJECTIVES)


def overloaded(refuse_first: str, times: float = 3.0) -> VirtualFleet:
    """Prompts of 1,000 and of 2,000 tokens, three times as many as two prefill workers can do."""
    fleet = VirtualFleet(2, 2, 3, refuse_first=refuse_first, **OBJECTIVES)
    fleet.run(times * 13.0, 20.0, 60)
    return fleet


def good(fleet: VirtualFleet, tokens: int) -> int:
    return sum(request.good for request in fleet.requests if request.tokens == tokens)


def test_more_requests_are_served_past_capacity() -> None:
    late, largest = overloaded("late"), overloaded("largest")
    assert good(largest, 1000) > 1.1 * good(late, 1000)
    assert good(largest, 2000) < 0.8 * good(late, 2000)
    served = [good(fleet, 1000) + good(fleet, 2000) for fleet in (late, largest)]
    assert served[1] > 1.03 * served[0], served


def test_below_capacity_nobody_is_refused_for_the_size() -> None:
    fleet = overloaded("largest", 0.6)
    assert fleet.master.shedding.shares() == {"m": 0.0}
    assert good(fleet, 2000) > 0.9 * sum(r.tokens == 2000 for r in fleet.requests)


@pytest.mark.parametrize("flags", [{}, {"refuse_first": "largest", "queue_policy": "last"}])
def test_without_the_flag_or_where_late_ones_are_served_last_nothing_is_shed(
    flags: dict[str, str],
) -> None:
    fleet = VirtualFleet(2, 2, 3, **OBJECTIVES, **flags)
    fleet.run(26.0, 10.0, 60)
    assert fleet.master.shedding.shares() == {}


def test_a_model_that_the_master_has_forgotten_is_forgotten() -> None:
    made = master("prefill", "decode", refuse_first="largest", **OBJECTIVES)
    made.schedule(asking("a"), 0.0)
    made.expire(1.0)
    assert made.shedding.shares() == {"m": 0.0}
    del made.registry.fleets["m"]
    made.expire(2.0)
    assert made.shedding.shares() == {}


def sized(tokens: int, name: object = "", **fields: Any) -> ScheduleRequest:
    """Of another name by each size, if none is given."""
    wanted = {"blocks": 0, "prompt_tokens": tokens, "ttft_slo_s": 1.0, **fields}
    return asking(f"{name or tokens}", **wanted)


def busy() -> Fleet:
    """One prefill and one decode worker, with more requests than workers."""
    made = master("prefill", "decode")
    for number in range(3):
        made.schedule(asking(f"busy{number}", blocks=0), 0.0)
    return made.registry.fleets["m"]


def shedding(*, lates: int) -> tuple[Shedding, list[Exception]]:
    """Checks 128 requests of 100 to 12,800 tokens, says that so many were late, and checks the same
    requests twice more; the refusals of these 256."""
    fleet, shed = busy(), Shedding(LARGEST)
    sizes = [100 * (1 + number) for number in range(128)]
    random.Random(1).shuffle(sizes)
    for size in sizes:
        shed.check(fleet, sized(size))
    for _ in range(lates):
        shed.refused("m", TooLate("late"))
    found: list[Exception] = []
    for number, size in enumerate(sizes * 2):
        try:
            shed.check(fleet, sized(size, f"again{number}"))
        except TooLarge as error:
            found.append(error)
    return shed, found


def test_the_largest_are_refused_once_others_are_late() -> None:
    shed, found = shedding(lates=20)
    share = shed.shares()["m"]
    assert share == pytest.approx(1.0 - 0.98**20)
    # The limit follows the share with every 16th request.
    assert 0.8 * share < len(found) / 256 < 1.1 * share
    error = found[0]
    assert isinstance(error, TriptychError)
    assert (error.status, error.code, error.retry_after_s) == (503, "slo_unreachable", 5.0)
    assert "longer than 67% of them" in error.message


def test_nobody_is_refused_while_none_is_late_and_less_with_each_in_time() -> None:
    assert shedding(lates=0)[1] == []
    shed, _ = shedding(lates=20)
    before = shed.shares()["m"]
    # Neither those that wait nor those that were refused for their size were late.
    shed.refused("m", AllBusy("busy"))
    shed.refused("m", TooLarge("large"))
    shed.refused("other", TooLate("late"))
    assert shed.shares() == {"m": before}
    for _ in range(10):
        shed.placed("m")
    assert shed.shares()["m"] == pytest.approx(before - 0.035)
    for _ in range(1000):
        shed.placed("m")
    assert shed.shares()["m"] == 0.0


def test_a_fleet_with_workers_to_spare_refuses_nobody() -> None:
    made, shed = master("prefill", "decode"), Shedding(LARGEST)
    fleet = made.registry.fleets["m"]
    for size in range(100, 6500, 50):
        shed.check(fleet, sized(size))
        shed.refused("m", TooLate("late"))
    assert shed.shares()["m"] > 0.9


@pytest.mark.parametrize("fields", [{"retry": True}, {"priority": 51}, {"ttft_slo_s": 0.0}])
def test_retries_higher_priorities_and_requests_without_objectives_pass(
    fields: dict[str, Any],
) -> None:
    """A retry's client may have part of the answer."""
    shed, refused = shedding(lates=100)
    assert refused
    fleet = busy()
    shed.check(fleet, sized(100_000, **fields))
    with pytest.raises(TooLarge):
        shed.check(fleet, sized(100_000, priority=50, avoid=["p0"]))


def test_a_request_that_is_asked_for_twice_counts_once() -> None:
    """Half of the requests are small, and each of them is asked for ten times in a row."""
    fleet, shed = busy(), Shedding(LARGEST)
    for number in range(64):
        for _ in range(10):
            shed.check(fleet, sized(100, f"small{number}"))
        shed.check(fleet, sized(1000, f"large{number}"))
    for _ in range(20):
        shed.refused("m", TooLate("late"))
    assert 0.3 < shed.shares()["m"] < 0.5
    for number in range(16):  # the next sixteenth request sets the limit
        shed.check(fleet, sized(100, f"next{number}"))
    shed.check(fleet, sized(1000, "of the larger half"))


def test_requests_without_objectives_are_not_looked_at() -> None:
    made = master("prefill", "decode", refuse_first="largest")
    assert isinstance(made.schedule(asking("a"), 0.0), Placement)
    assert made.shedding.shares() == {}


def size_ms(roles: tuple[str, ...], **fields: Any) -> float:
    """As the rates of `tests.support.master_fleets` say: 1 ms a token of a picture and of a prompt,
    0.1 ms of a decode step."""
    fleet = master(*roles).registry.fleets["m"]
    return float(work_of(asking("a", **fields), 100) @ prices(fleet))


def test_a_size_is_the_time_of_all_stages() -> None:
    three = ("encode", "prefill", "decode")
    assert size_ms(three, prompt_tokens=1000, max_tokens=10) == pytest.approx(1001.0)
    assert size_ms(three, prompt_tokens=1000, max_tokens=10**6) == pytest.approx(1010.0)
    for roles in (three, ("pdfusion",), ("prefill", "decode")):
        found = size_ms(roles, prompt_tokens=1000, max_tokens=10, items=[picture("p")])
        assert found == pytest.approx(1001.0 + 32.0)
