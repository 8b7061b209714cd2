"""Plans of a proxy without a master: what has failed a request is not asked again."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.placement import MediaNeed
from proxy.fleet.fleet import Fleet
from proxy.placement.own_view import OwnView, by_load, by_load_of
from proxy.request_state import Tries

TURNS = 8  # more than there are workers, so that each would get its turn


def test_a_worker_that_failed_is_avoided_while_another_can_do_it() -> None:
    fleet = Fleet.from_urls("", "http://p0,http://p1", "http://d0,http://d1")
    avoid = [fleet.prefill[0], fleet.decode[1]]
    for _ in range(TURNS):
        plan = by_load(fleet, 4, avoid)
        assert (plan.prefill, plan.decode) == (fleet.prefill[1], fleet.decode[0])


def test_without_a_fresh_prefill_worker_decode_does_both() -> None:
    fleet = Fleet.from_urls("", "http://p0,http://p1", "http://d0")
    for _ in range(TURNS):
        plan = by_load(fleet, 4, fleet.prefill)
        assert (plan.prefill, plan.decode) == (None, fleet.decode[0])


def test_without_a_fresh_decode_worker_prefill_does_both() -> None:
    fleet = Fleet.from_urls("", "http://p0,http://p1", "http://d0")
    for _ in range(TURNS):
        plan = by_load(fleet, 4, [*fleet.decode, fleet.prefill[0]])
        assert (plan.prefill, plan.decode) == (None, fleet.prefill[1])


def test_one_that_failed_is_asked_again_if_there_is_no_other() -> None:
    fleet = Fleet.from_urls("", "", "http://d0")
    assert by_load(fleet, 4, fleet.decode).decode is fleet.decode[0]


def test_one_token_needs_no_prefill_worker() -> None:
    fleet = Fleet.from_urls("", "http://p0", "http://d0")
    assert by_load(fleet, 1, ()).prefill is None
    assert by_load(fleet, 2, ()).prefill is fleet.prefill[0]


def test_a_picture_goes_to_another_encoder_than_the_one_that_failed_it() -> None:
    fleet = Fleet.from_urls("http://e0,http://e1,http://e2", "", "http://d0")
    for number in range(TURNS):
        name = f"{number:064x}"
        first = fleet.by_content(name)
        second = fleet.by_content(name, [first])
        assert second is not first
        assert fleet.by_content(name, [first, second]) not in (first, second)
        assert fleet.by_content(name) is first


async def test_plans_heed_what_has_failed_their_request() -> None:
    fleet = Fleet.from_urls("", "http://p0,http://p1", "http://d0,http://d1")
    admission: Any = None
    need: Any = SimpleNamespace(
        max_tokens=4, wanted_model=None, pooling=False, alone=False, items=()
    )
    state: Any = Tries(deadline=time.monotonic() + 10, avoid=[fleet.prefill[1], fleet.decode[0]])
    for _ in range(TURNS):
        plan = await OwnView(fleet, admission).place(state, need)
        assert (plan.prefill, plan.decode) == (fleet.prefill[0], fleet.decode[1])


@pytest.mark.parametrize(
    ("encoders", "kind", "there"),
    [("", "shm", True), ("", "", True), ("http://e0", "", True), ("http://e0", "shm", False)],
)
def test_a_worker_that_does_it_all_encodes_what_no_encoder_makes_for_it(
    encoders: str, kind: str, there: bool
) -> None:
    fleet = Fleet.from_urls(encoders, "", "http://d0,http://d1")
    for worker in fleet.decode:
        worker.does_all, worker.ec_compatibility = True, kind
    items = [MediaNeed(name, 0, 1, 1) for name in ("a", "b")]
    need: Any = SimpleNamespace(
        max_tokens=4, wanted_model=None, pooling=False, alone=False, items=items
    )
    plan = by_load_of(fleet, need, [fleet.decode[0]])
    assert plan.decode is fleet.decode[1]
    assert plan.encoders == (dict.fromkeys("ab", plan.decode) if there else {})
    assert all(plan.encodes_there(item.mm_hash) for item in items)
    for worker in fleet.encode:
        worker.up = False
    assert fleet.able(pictures=True) and not fleet.unencoded()
