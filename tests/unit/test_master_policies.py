"""Policies against their formulas."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from protocol.errors import ConfigError
from protocol.registry import InstanceInfo, Load
from services.master.config import MasterConfig
from services.master.policies.base import Policy
from services.master.policies.loading import POLICIES, load_policy
from services.master.pool import Floats, Pool
from services.master.view import DECODE, PREFILL, View


class LastPolicy(Policy):
    """A user's own."""

    def scores(self, view: View) -> Floats:
        return -np.arange(len(view.pool), dtype=np.float64)


def view_of(loads: list[Load], hits: list[float] | None = None, stage: str = PREFILL) -> View:
    pool = Pool("prefill", MasterConfig())
    for i, load in enumerate(loads):
        pool.add(InstanceInfo(f"w{i}", "prefill", f"http://w{i}:1", "m", load=load), i, 0.0)
    none = np.zeros(len(pool))
    held = none.copy()
    held[: len(hits or [])] = hits or []
    queue = pool.busy_until.copy()
    return View(
        stage, pool, pool.penalty, 160, 10, 16, held, queue, (160 - held) * 1.0, none, none, 0, ""
    )


def policy(name: str, **config: Any) -> Policy:
    return load_policy(MasterConfig(policy=name, **config), random.Random(1))


def picks(found: Policy, view: View, count: int) -> list[int]:
    return [found.pick(view) for _ in range(count)]


def test_round_robin_goes_around_and_skips_who_is_out() -> None:
    view = view_of([Load()] * 4)
    found = policy("round_robin")
    assert picks(found, view, 6) == [0, 1, 2, 3, 0, 1]
    view.pool.allow(2, False)
    assert picks(found, view, 4) == [3, 0, 1, 3]


def test_random_uses_all_and_only_those_allowed() -> None:
    view = view_of([Load()] * 4)
    view.pool.allow(1, False)
    counts = Counter(picks(policy("random"), view, 300))
    assert set(counts) == {0, 2, 3}
    assert min(counts.values()) > 60


def test_least_loaded_counts_requests_and_draws_ties() -> None:
    view = view_of([Load(queued=2, running=1), Load(running=2), Load(queued=2), Load(running=9)])
    assert set(picks(policy("least_loaded"), view, 50)) == {1, 2}


def test_kv_is_dynamos_formula() -> None:
    loads = [Load(queued_tokens=320, context_tokens=160), Load(context_tokens=480)]
    view = view_of(loads, [96.0, 0.0])
    # overlap_weight * (queued + prompt - hits) / block_size + active blocks
    assert policy("kv").scores(view)[:2].tolist() == [(320 + 160 - 96) / 16 + 10, 160 / 16 + 30]
    weighted = policy("kv", overlap_weight=0.5).scores(view)[:2]
    assert weighted.tolist() == [12 + 10, 5 + 30]
    view.stage = DECODE
    assert policy("kv", overlap_weight=9.0).scores(view)[:2].tolist() == [10 + 10, 30 + 10]


def test_kv_with_a_temperature_is_a_softmax() -> None:
    view = view_of([Load(context_tokens=0), Load(context_tokens=32)])
    counts = Counter(picks(policy("kv", temperature=2.0), view, 2000))
    assert counts[0] / counts[1] == pytest.approx(np.e, rel=0.15)
    view.pool.allow(0, False)
    assert set(picks(policy("kv", temperature=2.0), view, 20)) == {1}


def test_cost_draws_among_near_equals_only() -> None:
    view = view_of([Load(queued_tokens=n) for n in (0, 2, 500)])
    view.queue_ms[:3] = [0.0, 2.0, 500.0]
    assert set(picks(policy("cost", tie_ms=5.0, tie_ratio=0.0), view, 50)) == {0, 1}
    assert set(picks(policy("cost", tie_ms=0.0, tie_ratio=0.0), view, 50)) == {0}


def test_cost_weighs_work_against_waiting() -> None:
    """80 ms of cache hits are worth 80 * (1 + work_weight) ms of queue, and no more."""
    view = view_of([Load(), Load()], [80.0, 0.0])
    sharp = {"tie_ms": 0.0, "tie_ratio": 0.0, "work_weight": 0.5}
    view.queue_ms[:2] = [119.0, 0.0]
    assert policy("cost", **sharp).pick(view) == 0
    view.queue_ms[:2] = [121.0, 0.0]
    assert policy("cost", **sharp).pick(view) == 1


def test_a_policy_of_the_users_own() -> None:
    view = view_of([Load()] * 3)
    found = policy(f"{__name__}:LastPolicy")
    view.penalty = np.where(np.arange(len(view.pool)) < 3, 0.0, np.inf)
    assert found.pick(view) == 2


@pytest.mark.parametrize(
    "name", ["nothing", "no.such.module:Policy", f"{__name__}:Missing", f"{__name__}:view_of"]
)
def test_a_policy_that_is_none_is_a_configuration_error(name: str) -> None:
    with pytest.raises(ConfigError):
        policy(name)


def test_every_named_policy_loads() -> None:
    assert set(POLICIES) == {"cost", "kv", "least_loaded", "random", "round_robin"}
    view = view_of([Load()] * 3)
    for name in POLICIES:
        assert policy(name).pick(view) in (0, 1, 2)
