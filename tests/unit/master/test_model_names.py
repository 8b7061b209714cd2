"""Which workers are meant by a model's name, an alias, or an adapter's name."""

from typing import Any

import pytest

from protocol.errors import ModelNotFound, Unavailable
from protocol.placement import Placement, ScheduleRequest
from protocol.registry import InstanceInfo, InstanceName, InstanceRole
from services.master.config import MasterConfig
from services.master.master import Master
from services.master.placement.waiting import PlacementTicket


def registered(made: Master, name: str, role: InstanceRole, model: str, **fields: Any) -> None:
    made.register(InstanceInfo(name, role, f"http://{name}:1", model, **fields), 0.0)


def ask(made: Master, model: str, name: str = "r", **fields: Any) -> Placement | PlacementTicket:
    return made.schedule(ScheduleRequest(name, 100, model=model, **fields), 0.0)


@pytest.fixture
def made() -> Master:
    made = Master(MasterConfig(seed=1))
    registered(made, "b0", "pdfusion", "base", aliases=["short"], adapters=["french"])
    registered(made, "b1", "pdfusion", "base", aliases=["short"])
    registered(made, "o0", "pdfusion", "other", adapters=["french-other"])
    return made


def at(placed: Placement | PlacementTicket) -> str:
    assert isinstance(placed, Placement)
    return placed.decode.instance_id


def test_an_alias_is_the_model(made: Master) -> None:
    found = {at(ask(made, name, f"r{i}")) for i in range(6) for name in ("short", "base")}
    assert found == {"b0", "b1"}
    assert at(ask(made, "other")) == "o0"
    with pytest.raises(ModelNotFound):
        ask(made, "nothing")


def test_an_adapter_goes_to_workers_that_have_it(made: Master) -> None:
    assert {at(ask(made, "french", f"r{i}")) for i in range(6)} == {"b0"}
    assert {at(ask(made, "base", f"s{i}", adapter="french")) for i in range(3)} == {"b0"}
    assert at(ask(made, "french-other")) == "o0"
    made.deregister(InstanceName("b0"), 0.0)
    with pytest.raises(ModelNotFound):
        ask(made, "french")
    with pytest.raises(Unavailable):
        ask(made, "base", adapter="french")


def test_adapters_come_and_go_without_a_restart(made: Master) -> None:
    cursor, instance = made.registry.changelog.cursor, made.registry.instances["b1"]
    names: dict[str, Any] = {"aliases": ["short"], "adapters": ["french", "new"]}
    registered(made, "b1", "pdfusion", "base", **names, adapter_revisions={"new": "1"})
    assert made.registry.instances["b1"] is instance
    assert instance.info.adapter_revisions == {"new": "1"}
    assert at(ask(made, "new")) == "b1"
    assert {at(ask(made, "french", f"r{i}")) for i in range(8)} == {"b0", "b1"}
    assert made.registry.changelog.since(cursor) == (["b1"], []), "proxies are told"
    registered(made, "b1", "pdfusion", "base")
    with pytest.raises(ModelNotFound):
        ask(made, "new")
    made.deregister(InstanceName("b0"), 0.0)
    with pytest.raises(ModelNotFound):
        ask(made, "short")


def test_a_models_own_name_counts_before_an_alias(made: Master) -> None:
    registered(made, "o1", "pdfusion", "other", aliases=["base"])
    assert {at(ask(made, "base", f"r{i}")) for i in range(6)} == {"b0", "b1"}
    for name in ("b0", "b1"):
        made.deregister(InstanceName(name), 0.0)
    assert at(ask(made, "base")) in ("o0", "o1"), "no worker serves it by its own name any more"
