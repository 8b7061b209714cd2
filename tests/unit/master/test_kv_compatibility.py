"""A prefill and a decode worker of one request hand over KV of one compatibility."""

from typing import Any

import msgspec
import pytest

from protocol.placement import Placement, ScheduleRequest
from protocol.refs import KVRef, compatibility_of
from protocol.registry import Drain, InstanceInfo, InstanceRole
from proxy.fleet.fleet import Fleet
from proxy.placement.own_view import by_load
from services.master.config import MasterConfig
from services.master.master import Master

TURNS = 40


def endpoint(kind: str) -> dict[str, Any]:
    return KVRef("", "i", (), 0, compatibility=kind).to_params()


def master_of(**workers: str) -> Master:
    """Workers by name, whose first letter is their role, with the kind of their KV."""
    master = Master(MasterConfig(seed=1))
    roles: dict[str, InstanceRole] = {"p": "prefill", "d": "decode"}
    for name, kind in workers.items():
        at = endpoint(kind) if kind else None
        info = InstanceInfo(name, roles[name[0]], f"http://{name}:1", model="m", kv_endpoint=at)
        master.register(info, 0.0)
    return master


def pairs_of(master: Master) -> set[tuple[str, str]]:
    found = set()
    for turn in range(TURNS):
        request = ScheduleRequest(f"r{turn}", 100, model="m", max_tokens=8)
        placement = master.schedule(request, 1.0)
        assert isinstance(placement, Placement) and placement.prefill is not None
        found.add((placement.prefill.instance_id, placement.decode.instance_id))
    return found


def test_the_master_pairs_workers_of_one_kind() -> None:
    master = master_of(p1="old", p2="new", p3="", d1="old", d2="new")
    both = {("p1", "d1"), ("p2", "d2"), ("p3", "d1"), ("p3", "d2")}
    assert pairs_of(master) == both


def test_a_prefill_worker_without_a_partner_gets_nothing() -> None:
    assert pairs_of(master_of(p1="old", p2="new", d2="new")) == {("p2", "d2")}
    master = master_of(p1="old", p2="new", d1="old", d2="new")
    master.drain(Drain("d1"), 1.0)
    assert pairs_of(master) == {("p2", "d2")}


def test_decode_does_it_all_where_no_prefill_worker_fits() -> None:
    placed = master_of(p1="old", d2="new").schedule(ScheduleRequest("r", 100, model="m"), 1.0)
    assert isinstance(placed, Placement)
    assert (placed.prefill, placed.decode.instance_id) == (None, "d2")


def test_the_proxy_pairs_by_itself() -> None:
    fleet = Fleet.from_urls("", "http://p1,http://p2", "http://d1,http://d2")
    for instance in fleet.all():
        instance.kv_compatibility = "old" if instance.url.endswith("1") else "new"
    found = set()
    for _ in range(TURNS):
        plan = by_load(fleet, 4, ())
        assert plan.prefill is not None
        found.add((plan.prefill.url[-1], plan.decode.url[-1]))
    assert found == {("1", "1"), ("2", "2")}
    fleet.prefill[0].up = fleet.decode[1].up = False
    assert by_load(fleet, 4, ()).prefill is None, "decode does it all"


@pytest.mark.parametrize(
    "said", [None, {}, {"triptych": 1}, {"triptych": {}}, {"triptych": {"compatibility": 3}}]
)
def test_who_does_not_say_fits_all(said: dict[str, Any] | None) -> None:
    assert compatibility_of(said) == ""
    assert compatibility_of(endpoint("x")) == "x"
    assert msgspec.json.decode(msgspec.json.encode(endpoint("x"))) == endpoint("x")
