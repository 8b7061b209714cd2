"""What a proxy makes of a master's placement."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.placement import (
    ItemPlacement,
    Placement,
    Scheduled,
    ScheduleRequest,
    ScheduleRequests,
    ScheduleResult,
    Target,
)
from protocol.registry import InstanceRole
from proxy.fleet.fleet import Fleet
from proxy.fleet.worker import Breaker, Instance
from proxy.metrics import ProxyMetrics
from proxy.placement.by_master import MasterPlanner
from proxy.placement.planner import Need, Plan
from proxy.request_state import RequestState


def target(name: str, role: InstanceRole) -> Target:
    return Target(name, f"http://{name}:1", role)


ENCODER, PREFILL, DECODE = target("e", "encode"), target("p", "prefill"), target("d", "decode")


def planned(
    attempt: int, prefill: Target | None, *items: ItemPlacement, elastic: bool = False
) -> Plan:
    """`elastic`: workers are of the role any, and so encode too."""
    roles: dict[str, Any] = {"e": "encode", "p": "prefill", "d": "decode"}
    by_id = {
        n: Instance(f"http://{n}:1", role, Breaker(), changes_role=elastic)
        for n, role in roles.items()
    }
    unused: Any = None
    following: Any = SimpleNamespace(by_id=by_id)
    placing = MasterPlanner(unused, unused, following, unused, unused, unused)
    state: Any = SimpleNamespace(attempt=attempt)
    return placing._plan(state, Placement("r", DECODE, prefill, list(items)))


@pytest.mark.parametrize(("prefill", "holder"), [(PREFILL, PREFILL), (None, DECODE)])
def test_what_the_worker_that_prefills_holds_is_not_encoded(
    prefill: Target | None, holder: Target
) -> None:
    items = ItemPlacement("x", "cached", holder), ItemPlacement("y", "cached", ENCODER)
    plan = planned(0, prefill, *items, ItemPlacement("z", "prefix"))
    assert plan.held == {"x", "z"}
    assert {name: i.url for name, i in plan.encoders.items()} == {"y": "http://e:1"}


def test_what_it_held_no_longer_is_encoded_by_the_next_attempt() -> None:
    plan = planned(1, PREFILL, ItemPlacement("x", "cached", PREFILL))
    assert (plan.held, plan.encoders) == (frozenset(), {})


@pytest.mark.parametrize("explained", [False, True])
async def test_a_master_is_asked_for_reasons_only_while_operators_look(explained: bool) -> None:
    asked: list[ScheduleRequest] = []

    class Client:
        async def post(self, path: str, body: ScheduleRequests, *_: object) -> Scheduled:
            asked.extend(body.requests)
            (one,) = body.requests
            debug = {"decode": {"chosen": "d"}} if one.debug else None
            return Scheduled([ScheduleResult(Placement(one.request_id, DECODE, debug=debug))])

    fleet = Fleet()
    worker = Instance(DECODE.url, "decode", Breaker())
    following: Any = SimpleNamespace(by_id={"d": worker}, asked_for=lambda name: name)
    client: Any = Client()
    none: Any = None
    placing = MasterPlanner(fleet, client, following, none, none, ProxyMetrics(fleet))
    state = RequestState(deadline=time.monotonic() + 60)
    state.record.explained = explained
    plan = await placing._by_master(state, Need("r", 5, 4, [], lambda size: []))
    assert plan.decode is worker and asked[0].debug is explained
    assert state.record.reasons == (({"decode": {"chosen": "d"}},) if explained else ())


def test_a_worker_that_cannot_encode_is_sent_no_pictures() -> None:
    """The master knows no encoder: the proxy's own may know one, or refuses for want of one."""
    plan = planned(0, PREFILL, ItemPlacement("x", "local"))
    assert plan.local == {"x"} and not plan.encoders


@pytest.mark.parametrize(("prefill", "url"), [(PREFILL, "http://p:1"), (None, "http://d:1")])
def test_what_the_worker_that_prefills_is_to_encode_is_sent_there(
    prefill: Target | None, url: str
) -> None:
    plan = planned(0, prefill, ItemPlacement("x", "local"), elastic=True)
    assert plan.local == {"x"} and plan.encoders["x"].url == url
