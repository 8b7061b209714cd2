"""What the master's benchmark reckons from what it has measured."""

from collections import Counter

import pytest

from benchmarks.bench_master import memory
from benchmarks.bench_master.agreement import quantile, value
from benchmarks.bench_master.open_loop import Step, step_rows, sustained
from benchmarks.bench_master.restart import _value

TEXT = """# TYPE triptych_master:late_seconds histogram
triptych_master:late_seconds_bucket{le="0.01"} 50.0
triptych_master:late_seconds_bucket{le="0.02"} 90.0
triptych_master:late_seconds_bucket{le="+Inf"} 100.0
triptych_master:index_entries{kind="blocks",model="m"} 7.0
triptych_master:index_entries{kind="blocks",model="n"} 5.0
triptych_master:index_entries{kind="media",model="m"} 3.0
triptych_master:event_sources_incomplete 2.0
"""


@pytest.mark.parametrize(("share", "seconds"), [(0.25, 0.005), (0.5, 0.01), (0.7, 0.015)])
def test_a_quantile_lies_within_its_bucket(share: float, seconds: float) -> None:
    assert quantile(TEXT, "late_seconds", share) == pytest.approx(seconds)


def test_what_is_beyond_the_last_bound_has_no_bound() -> None:
    assert quantile(TEXT, "late_seconds", 0.99) == float("inf")


def test_metrics_are_read_by_name_and_labels() -> None:
    assert value(TEXT, 'index_entries{kind="blocks",model="m"}') == 7.0
    assert value(TEXT, "no_such_metric") == -1.0
    assert _value(TEXT, "index_entries") == 12.0
    assert _value(TEXT, "event_sources_incomplete") == 2.0


def test_each_block_is_stored_by_as_many_workers_as_hold_it() -> None:
    holders: dict[int, set[int]] = {}
    stored = Counter[int]()
    for worker, keys in memory.events(5_000, 2):
        stored.update(keys)
        for key in keys:
            holders.setdefault(key, set()).add(worker)
    assert len(holders) == 5_000
    assert set(stored.values()) == {2} and {len(held) for held in holders.values()} == {2}


def test_a_rate_is_sustained_if_all_were_answered_within_a_second() -> None:
    step = Step(10.0, 1.0, times=[0.1, 0.2], offered=2, wall_s=1.0)
    assert sustained(step)
    assert step_rows(step)[0].ours == pytest.approx(150.0)
    assert not sustained(Step(10.0, 1.0, times=[0.1, 1.2], offered=2, wall_s=1.0))
    assert not sustained(Step(10.0, 1.0, times=[0.1], offered=2, wall_s=1.0))
