"""Fleets whose workers cannot serve a request together."""

import logging
from typing import Any

import pytest

from proxy.fleet.fleet import Fleet
from proxy.fleet.mistakes import MistakeLog, mistakes_of

SAME = "m@abc:layout:shm"


def fleet_of(**kinds: str) -> Fleet:
    """Workers by name, whose first letter is the role's, with their KV's compatibility."""
    fleet = Fleet()
    roles: dict[str, Any] = {"e": "encode", "p": "prefill", "d": "decode"}
    for name, kind in kinds.items():
        instance = fleet.add(f"http://{name}:1", roles[name[0]])
        instance.kv_endpoint = {"triptych": {"compatibility": kind}} if kind else None
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


def test_the_one_that_fits_nobody_is_named_alone() -> None:
    (found,) = mistakes_of(fleet_of(p1=SAME, p2="m@abc:other:shm", d1=SAME))
    assert "http://p2:1" in found and "http://p1:1" not in found


def test_other_weights_under_the_same_name() -> None:
    fleet = fleet_of(e1="", p1=SAME, d1=SAME)
    fleet.encode[0].revision = "xyz"
    (found,) = mistakes_of(fleet)
    assert "encode worker http://e1:1" in found and "xyz" in found


def test_a_mistake_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fleet = fleet_of(p1=SAME, d1="m@abc:other:shm")
    fleet.subscribe(MistakeLog(fleet).look)
    fleet.news()
    fleet.news()
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    fleet.decode[0].kv_endpoint = fleet.prefill[0].kv_endpoint
    fleet.news()
    fleet.news()
    assert [record.levelname for record in caplog.records[2:]] == ["INFO", "INFO"]
