"""Gauges that alerts go by last as long as what they tell of."""

import re

from protocol.types import Role
from proxy.fleet.fleet import Fleet
from proxy.metrics import ProxyMetrics


class Masters:
    present = True
    failovers = 3


def workers_up(metrics: ProxyMetrics) -> dict[str, float]:
    row = re.compile(r'^triptych_proxy:workers_up\{role="(\w+)"\} (\S+)$', re.MULTILINE)
    return {role: float(number) for role, number in row.findall(metrics.render().decode())}


def filled(*roles: Role) -> Fleet:
    fleet = Fleet()
    for at, role in enumerate(roles):
        fleet.add(f"http://{role}-{at}:8000", role)
    return fleet


def test_a_role_whose_last_worker_has_left_has_none_up() -> None:
    fleet = filled("decode", "prefill", "prefill")
    metrics = ProxyMetrics(fleet)
    assert workers_up(metrics) == {"decode": 1, "prefill": 2}
    fleet.prefill[0].up = False
    fleet.remove(fleet.decode[0])
    for _ in range(2):
        assert workers_up(metrics) == {"decode": 0, "prefill": 1}
    fleet.add("http://decode-9:8000", "decode")
    assert workers_up(metrics) == {"decode": 1, "prefill": 1}


def test_a_role_that_is_given_up_is_not_missed() -> None:
    fleet = filled("encode", "prefill", "prefill", "decode")
    metrics = ProxyMetrics(fleet)
    first, second = fleet.prefill
    fleet.remove(first, given_up=True)
    assert workers_up(metrics) == {"decode": 1, "encode": 1, "prefill": 1}
    fleet.remove(second, given_up=True)
    fleet.remove(fleet.encode[0])
    assert workers_up(metrics) == {"decode": 1, "encode": 0}
    fleet.add("http://prefill-9:8000", "prefill").up = False
    assert workers_up(metrics) == {"decode": 1, "encode": 0, "prefill": 0}
    for worker in fleet.all():
        fleet.remove(worker, given_up=True)
    assert workers_up(metrics) == {"decode": 0, "encode": 0}, "no request can do without"


def test_roles_that_workers_could_be_moved_to_are_given_up_with_the_last_of_these() -> None:
    fleet = filled("encode", "decode", "decode")
    metrics = ProxyMetrics(fleet)
    fixed, first, second = fleet.decode[1], fleet.encode[0], fleet.decode[0]
    first.changes_role = second.changes_role = True
    fleet.remove(first, given_up=True)
    assert workers_up(metrics) == {"decode": 2, "encode": 1}
    fleet.remove(second, given_up=True)
    assert workers_up(metrics) == {"decode": 1} and fixed.up


def test_a_proxy_that_knows_no_worker_has_no_one_up_that_answers() -> None:
    assert workers_up(ProxyMetrics(Fleet())) == {"decode": 0}
    assert workers_up(ProxyMetrics(filled("encode"))) == {"decode": 0, "encode": 1}
    assert workers_up(ProxyMetrics(filled("prefill"))) == {"prefill": 1}


def test_a_role_that_a_master_may_give_to_another_worker_is_not_without_any() -> None:
    fleet = filled("encode", "decode")
    metrics = ProxyMetrics(fleet)
    assert workers_up(metrics) == {"decode": 1, "encode": 1}
    (moved,) = fleet.encode
    moved.changes_role = True
    fleet.move(moved, "prefill")
    assert workers_up(metrics) == {"decode": 1, "encode": 1, "prefill": 1}
    moved.up = False
    assert workers_up(metrics) == {"decode": 1, "encode": 0, "prefill": 0}


def test_only_a_proxy_that_has_masters_tells_whether_one_answers() -> None:
    masters = Masters()
    assert b"master_present" not in ProxyMetrics(Fleet()).render()
    metrics = ProxyMetrics(Fleet(), masters)
    assert b"\ntriptych_proxy:master_present 1.0\n" in metrics.render()
    masters.present = False
    assert b"\ntriptych_proxy:master_present 0.0\n" in metrics.render()


def test_failovers_are_counted_once() -> None:
    metrics = ProxyMetrics(Fleet(), Masters())
    for _ in range(2):
        assert b"triptych_proxy:master_failovers_total 3.0\n" in metrics.render()
