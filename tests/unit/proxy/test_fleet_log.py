"""Fleets whose workers cannot serve a request together."""

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from proxy.fleet.fleet import Fleet
from proxy.fleet.fleet_log import MistakeLog, StateLog, mistakes_of
from proxy.fleet.own_model import OwnModel, OwnModels
from proxy.fleet.worker import Instance

SAME = "m@abc:layout:shm"
URL = "http://d:1"


def fleet_of(**kinds: str) -> Fleet:
    """Workers by name, whose first letter is the role's, with their KV's compatibility."""
    fleet = Fleet()
    roles: dict[str, Any] = {"e": "encode", "p": "prefill", "d": "decode"}
    for name, kind in kinds.items():
        instance = fleet.add(f"http://{name}:1", roles[name[0]])
        instance.kv_compatibility = kind
        instance.model, instance.revision = "m", "abc"
    return fleet


@pytest.mark.parametrize(
    "kinds",
    [
        {},
        {"p1": SAME, "d1": SAME},
        {"p1": SAME, "d1": ""},
        {"p1": "", "d1": SAME},
        {"d1": SAME},
        {"p1": SAME, "p2": "m@abc:new:shm", "d1": SAME, "d2": "m@abc:new:shm"},
    ],
)
def test_fleets_without_a_mistake(kinds: dict[str, str]) -> None:
    assert mistakes_of(fleet_of(**kinds)) == []


def test_another_transport_is_named_at_both_ends() -> None:
    found = mistakes_of(fleet_of(p1=SAME, d1="m@abc:layout:nixl"))
    assert len(found) == 2
    assert "http://p1:1" in found[0] and ":nixl" in found[0] and "--kv-transfer-config" in found[0]
    assert "http://d1:1" in found[1]


def test_the_one_that_fits_no_other_is_named_alone() -> None:
    (found,) = mistakes_of(fleet_of(p1=SAME, p2="m@abc:other:shm", d1=SAME))
    assert "http://p2:1" in found and "http://p1:1" not in found


def test_other_weights_under_the_same_name() -> None:
    fleet = fleet_of(e1="", p1=SAME, d1=SAME)
    fleet.encode[0].revision = "xyz"
    (found,) = mistakes_of(fleet)
    assert "encode worker http://e1:1" in found and "xyz" in found


def ec_fleet(**kinds: str) -> Fleet:
    """As `fleet_of`, with the compatibility of their EC."""
    fleet = fleet_of(**dict.fromkeys(kinds, ""))
    for instance, kind in zip(fleet.all(), kinds.values(), strict=True):
        instance.ec_compatibility = kind
    return fleet


@pytest.mark.parametrize(
    "kinds",
    [
        {"e1": "shm", "p1": "shm", "d1": "nixl"},
        {"e1": "", "p1": "shm"},
        {"e1": "nixl", "p1": "", "d1": "shm"},
        {"e1": "shm", "d1": "shm"},
        {"e1": "old", "e2": "new", "p1": "old", "p2": "new"},
        {"p1": "shm", "d1": "nixl"},
    ],
)
def test_encoders_whose_embeddings_can_be_read(kinds: dict[str, str]) -> None:
    assert mistakes_of(ec_fleet(**kinds)) == []


@pytest.mark.parametrize("reader", ["p1", "d1"])
def test_an_encoder_with_another_transport_is_named_with_who_would_read_it(reader: str) -> None:
    (found,) = mistakes_of(ec_fleet(**{"e1": "m@abc:f32:nixl", reader: "m@abc:f32:shm"}))
    assert "http://e1:1 is m@abc:f32:nixl" in found and f"http://{reader}:1" in found
    assert "its EC is m@abc:f32:shm" in found and "--ec-transfer-config" in found


def test_a_reader_and_an_encoder_of_several_are_named_alone() -> None:
    (found,) = mistakes_of(ec_fleet(e1="shm", p1="shm", p2="nixl"))
    assert found.startswith("prefill worker http://p2:1 can read no")
    (found,) = mistakes_of(ec_fleet(e1="shm", e2="nixl", p1="shm"))
    assert found.startswith("encode worker http://e2:1 makes embeddings that no worker can read")


def test_a_proxy_with_another_tokenizer() -> None:
    fleet = fleet_of(e1="", p1=SAME, d1=SAME)
    fleet.own = OwnModels(OwnModel(("tiny",), "demo", "abc", "mine"))
    for instance in fleet.all():
        instance.dialect = "tokens"
    fleet.prefill[0].tokenizer = "mine"
    fleet.news()
    assert mistakes_of(fleet) == []
    fleet.encode[0].tokenizer = fleet.decode[0].tokenizer = "other"
    fleet.news()
    (found,) = mistakes_of(fleet)
    assert "--model demo (mine)" in found and "decode worker http://d1:1 (other) has" in found
    assert "http://e1:1" not in found and "http://p1:1" not in found
    fleet.decode[0].dialect = "openai"  # it renders by itself
    fleet.news()
    assert mistakes_of(fleet) == []


def test_a_proxy_with_other_weights_than_all_workers() -> None:
    fleet = fleet_of(e1="", p1=SAME, d1=SAME)
    fleet.own = OwnModels(OwnModel(("tiny",), "demo", "old", "mine"))
    (found,) = mistakes_of(fleet)
    assert "--model demo has the weights old, the workers serve m with abc" in found
    fleet.own = OwnModels(OwnModel(("tiny",), "demo", "abc", "mine"))
    assert mistakes_of(fleet) == []


def test_a_relaying_proxy_whose_names_are_no_model_of_several() -> None:
    fleet = fleet_of(d1="", d2="")
    fleet.own = OwnModels(OwnModel(("mine", "my")))
    for instance, name in zip(fleet.decode, ("m", "n"), strict=True):
        instance.model, instance.models = name, frozenset((name,))
        instance.revision = ""
    (found,) = mistakes_of(fleet)
    assert found.startswith("no worker serves mine or my, but m, n")
    assert "--served-model-name" in found
    fleet.decode[0].models = frozenset(("m", "my"))
    assert mistakes_of(fleet) == []
    fleet.decode[0].model, fleet.decode[0].models = "n", frozenset("n")
    assert mistakes_of(fleet) == [], "the names are aliases of the only model"


def test_a_mistake_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fleet = fleet_of(p1=SAME, d1="m@abc:other:shm")
    fleet.subscribe(MistakeLog(fleet).look)
    fleet.news()
    fleet.news()
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    fleet.decode[0].kv_compatibility = fleet.prefill[0].kv_compatibility
    fleet.news()
    fleet.news()
    assert [record.levelname for record in caplog.records[2:]] == ["INFO", "INFO"]


@pytest.fixture
def fleet() -> Fleet:
    found = Fleet.from_urls("", "", URL)
    found.subscribe(StateLog(found).look)
    return found


def frozen(instance: Instance) -> None:
    instance.late_probes = 3
    instance.late(alone=False, cut_off=False)


def avoided(instance: Instance) -> None:
    for _ in range(instance.breaker.threshold):
        instance.breaker.failed(time.monotonic())


def drained(instance: Instance) -> None:
    instance.draining = True


CASES: list[tuple[Callable[[Instance], None], str, str]] = [
    (lambda worker: worker.refused("connection refused"), "down", "connection refused"),
    (frozen, "frozen", "it has been silent for too long"),
    (avoided, "avoided", "5 calls in a row failed (--breaker-failures)"),
    (drained, "draining", ""),
]


@pytest.mark.parametrize(("change", "event", "cause"), CASES, ids=[case[1] for case in CASES])
def test_each_change_is_said_once_and_its_end(
    change: Callable[[Instance], None], event: str, cause: str, fleet: Fleet,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    (worker,) = fleet.decode
    fleet.news()
    change(worker)
    fleet.news()
    fleet.news()
    worker.answered()
    worker.breaker.succeeded()
    worker.draining = False
    fleet.news()
    assert [record.getMessage() for record in caplog.records] == [
        "worker up", f"worker {event}", "worker up",
    ]  # fmt: skip
    said = vars(caplog.records[1])["fields"]
    assert said == {"role": "decode", "url": URL} | ({"cause": cause} if cause else {})
    assert "cause" not in vars(caplog.records[2])["fields"]


def test_a_call_that_finds_a_worker_gone_says_why(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.news()
    fleet.lose(fleet.decode[0], "the worker serves no more")
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert vars(record)["fields"]["cause"] == "the worker serves no more"
