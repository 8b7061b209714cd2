"""Policies against their formulas."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from protocol.errors import ConfigError
from protocol.registry import InstanceInfo, Load
from services.master.config import MasterConfig
from services.master.fleet.columns import Floats
from services.master.fleet.pool import Pool
from services.master.placement.costs import COMBINED, DECODE, ENCODE, PREFILL, StageCosts
from services.master.placement.policies.base import Policy
from services.master.placement.policies.factory import POLICIES, load_policy


class LastPolicy(Policy):
    """A user's own."""

    def scores(self, costs: StageCosts) -> Floats:
        return -np.arange(len(costs.pool), dtype=np.float64)


def costs_of(
    loads: list[Load], hits: list[float] | None = None, stage: str = PREFILL
) -> StageCosts:
    pool = Pool("prefill", MasterConfig())
    for i, load in enumerate(loads):
        pool.add(InstanceInfo(f"w{i}", "prefill", f"http://w{i}:1", "m", load=load), i, 0.0)
    none = np.zeros(len(pool))
    held = none.copy()
    held[: len(hits or [])] = hits or []
    queue = pool.busy_until.copy()
    return StageCosts(
        stage, pool, pool.penalty, 160, 10, 16, held, queue, (160 - held) * 1.0, none, none, 0, ""
    )


def policy(name: str, **config: Any) -> Policy:
    return load_policy(MasterConfig(policy=name, **config), random.Random(1))


def picks(found: Policy, costs: StageCosts, count: int) -> list[int]:
    return [found.pick(costs) for _ in range(count)]


def test_round_robin_goes_around_and_skips_who_is_out() -> None:
    costs = costs_of([Load()] * 4)
    found = policy("round_robin")
    assert picks(found, costs, 6) == [0, 1, 2, 3, 0, 1]
    costs.pool.allow(2, False)
    assert picks(found, costs, 4) == [3, 0, 1, 3]


def test_random_uses_all_and_only_those_allowed() -> None:
    costs = costs_of([Load()] * 4)
    costs.pool.allow(1, False)
    counts = Counter(picks(policy("random"), costs, 300))
    assert set(counts) == {0, 2, 3}
    assert min(counts.values()) > 60


def test_least_loaded_counts_requests_and_draws_ties() -> None:
    costs = costs_of([Load(queued=2, running=1), Load(running=2), Load(queued=2), Load(running=9)])
    assert set(picks(policy("least_loaded"), costs, 50)) == {1, 2}


def test_kv_is_dynamos_formula() -> None:
    """overlap_weight * (queued + prompt - credit * hits) / block_size, and where there is decoding
    the blocks that decode, the request's own included."""
    loads = [Load(queued_tokens=320, context_tokens=160), Load(context_tokens=480)]
    costs = costs_of(loads, [96.0, 0.0])
    assert policy("kv").scores(costs)[:2].tolist() == [(320 + 160 - 96) / 16, 160 / 16]
    assert policy("kv", overlap_credit=0.5).scores(costs)[0] == (320 + 160 - 48) / 16
    costs.stage = COMBINED
    weighted = policy("kv", overlap_weight=0.5).scores(costs)[:2]
    assert weighted.tolist() == [12 + 10 + 10, 5 + 30 + 10]
    costs.stage = DECODE
    assert policy("kv", overlap_weight=9.0).scores(costs)[:2].tolist() == [10 + 10, 30 + 10]
    kept = policy("kv", kv_local_tokens=100).scores(costs)[:2]
    assert kept.tolist() == [20 - 96 / 16, 40], "cached blocks count where rests may be computed"


def test_kv_with_a_temperature_is_a_softmax_over_the_range() -> None:
    costs = costs_of([Load(queued_tokens=0), Load(queued_tokens=32), Load(queued_tokens=64)])
    counts = Counter(picks(policy("kv", temperature=0.5), costs, 3000))
    assert counts[0] / counts[1] == pytest.approx(np.e, rel=0.2)
    assert counts[0] / counts[2] == pytest.approx(np.e**2, rel=0.25)
    costs.pool.allow(0, False)
    costs.pool.allow(2, False)
    assert set(picks(policy("kv", temperature=2.0), costs, 20)) == {1}


def test_cost_draws_among_near_equals_only() -> None:
    costs = costs_of([Load(queued_tokens=n) for n in (0, 2, 500)])
    costs.queue_ms[:3] = [0.0, 2.0, 500.0]
    assert set(picks(policy("cost", tie_ms=5.0, tie_ratio=0.0), costs, 50)) == {0, 1}
    assert set(picks(policy("cost", tie_ms=0.0, tie_ratio=0.0), costs, 50)) == {0}


def test_cost_weighs_work_against_waiting() -> None:
    """On an idle fleet 80 ms of cache hits are worth 80 * (1 + work_weight) ms of queue."""
    costs = costs_of([Load(), Load()], [80.0, 0.0])
    sharp = {"tie_ms": 0.0, "tie_ratio": 0.0, "work_weight": 0.5}
    costs.queue_ms[:2] = [119.0, 0.0]
    assert policy("cost", **sharp).pick(costs) == 0
    costs.queue_ms[:2] = [121.0, 0.0]
    assert policy("cost", **sharp).pick(costs) == 1


def test_a_policy_of_the_users_own() -> None:
    costs = costs_of([Load()] * 3)
    found = policy(f"{__name__}:LastPolicy")
    costs.penalty = np.where(np.arange(len(costs.pool)) < 3, 0.0, np.inf)
    assert found.pick(costs) == 2


@pytest.mark.parametrize(
    "name", ["nothing", "no.such.module:Policy", f"{__name__}:Missing", f"{__name__}:costs_of"]
)
def test_a_policy_that_is_none_is_a_configuration_error(name: str) -> None:
    with pytest.raises(ConfigError):
        policy(name)


def test_every_named_policy_loads() -> None:
    assert set(POLICIES) == {
        "cache_aware", "cost", "kv", "least_loaded", "random", "round_robin", "rtp",
        "smg",
    }  # fmt: skip
    costs = costs_of([Load()] * 3)
    for name in POLICIES:
        assert policy(name).pick(costs) in (0, 1, 2)


def test_kv_lets_encoders_take_turns() -> None:
    costs = costs_of([Load(queued=9), Load(), Load()], stage=ENCODE)
    assert picks(policy("kv"), costs, 4) == [0, 1, 2, 0]


def test_cost_uses_what_is_cached_once_the_fleet_is_busy() -> None:
    """80 ms of cache hits are worth 80 * (1 + work_weight * (1 + requests)) ms of queue."""
    costs = costs_of([Load(queued=3), Load(queued=3)], [80.0, 0.0])
    sharp = {"tie_ms": 0.0, "tie_ratio": 0.0, "work_weight": 0.5}
    costs.queue_ms[:2] = [239.0, 0.0]
    assert policy("cost", **sharp).pick(costs) == 0
    costs.queue_ms[:2] = [241.0, 0.0]
    assert policy("cost", **sharp).pick(costs) == 1


def test_rtp_prefill_scores() -> None:
    """Predicted compute of misses and 0.3 of hits, plus the wait; 0.2 ms per token."""
    costs = costs_of([Load(), Load()], [100.0, 0.0])
    costs.queue_ms[:2] = [7.0, 0.0]
    scores = policy("rtp").scores(costs)[:2]
    assert scores.tolist() == pytest.approx([(60 + 0.3 * 100) * 0.2 + 7.0, 160 * 0.2])


def test_rtp_draws_within_a_tenth_or_20_ms_of_the_best() -> None:
    costs = costs_of([Load()] * 3)
    costs.queue_ms[:3] = [0.0, 19.0, 21.0]  # 32 ms of own work: max(3.2, 20)
    assert set(picks(policy("rtp"), costs, 60)) == {0, 1}
    costs.queue_ms[:3] = [368.0, 407.0, 409.0]  # 400 ms at the best: max(40, 20)
    assert set(picks(policy("rtp"), costs, 60)) == {0, 1}


def test_rtp_leaves_out_workers_far_above_the_mean() -> None:
    costs = costs_of([Load(queued=20), Load(), Load(), Load()], [160.0])
    assert 0 not in picks(policy("rtp", rtp_slack=9.0), costs, 40)


def test_rtp_compares_with_means_of_whole_requests_and_ms() -> None:
    """One request among four workers is a mean of 0, which says nothing."""
    costs = costs_of([Load(queued=1), Load(), Load(), Load()], [160.0])
    assert 0 in picks(policy("rtp", rtp_slack=9.0), costs, 40)


def test_rtp_with_all_far_above_a_mean_takes_the_one_that_waits_least() -> None:
    """Two have more than 3 times the requests, the others more than 3 times the wait."""
    costs = costs_of([Load(queued=4), Load(queued=4), Load(), Load(), Load()])
    costs.queue_ms[:5] = [0.1, 0.0, 3.2, 3.2, 3.2]
    assert set(picks(policy("rtp", rtp_slack=9.0), costs, 40)) == {1}


def test_rtp_weighs_decode_workers_by_the_kv_they_use() -> None:
    loads = [Load(free_blocks=100, total_blocks=100), Load(free_blocks=37, total_blocks=100)]
    counts = Counter(picks(policy("rtp"), costs_of(loads, stage=DECODE), 3000))
    assert counts[0] / counts[1] == pytest.approx(np.exp(0.001 * 63 * 16), rel=0.12)


def test_rtp_leaves_out_decode_workers_far_above_the_mean_or_without_room() -> None:
    """However little it weighs the KV in use. A prompt is of 160 tokens, 10 blocks."""
    loads = [Load(running=1, free_blocks=free, total_blocks=1000) for free in (900, 900, 900, 9)]
    loads.append(Load(running=40, free_blocks=900, total_blocks=1000))
    costs = costs_of(loads, stage=DECODE)
    assert set(picks(policy("rtp", rtp_decay=1e-9), costs, 80)) == {0, 1, 2}
    full = [Load(running=1, free_blocks=free, total_blocks=1000) for free in (3, 9)]
    found = picks(policy("rtp", rtp_decay=1e-9), costs_of(full, stage=DECODE), 20)
    assert set(found) == {1}, "if none has room, that with the most"


def test_cache_aware_takes_the_best_match_above_the_threshold() -> None:
    costs = costs_of([Load(running=2), Load(running=1), Load(running=1)], [49.0, 0.0, 0.0])
    assert picks(policy("cache_aware"), costs, 3) == [0, 0, 0]  # 49 of 160 is above 0.3
    costs.hits[0] = 48.0
    assert set(picks(policy("cache_aware"), costs, 40)) == {1, 2}


def test_cache_aware_balances_only_beyond_both_thresholds() -> None:
    hits = [160.0, 0.0]
    assert policy("cache_aware").pick(costs_of([Load(running=64), Load()], hits)) == 0
    assert policy("cache_aware").pick(costs_of([Load(running=65), Load()], hits)) == 1
    near = [Load(running=195), Load(running=130)]  # 65 more, but not 1.5 times as many
    assert policy("cache_aware").pick(costs_of(near, hits)) == 0


def test_smg_takes_the_longest_match_however_short_and_of_equal_ones_the_least_loaded() -> None:
    costs = costs_of([Load(running=3), Load(running=2), Load()], [16.0, 16.0, 0.0])
    assert picks(policy("smg"), costs, 3) == [1, 1, 1]
    costs.hits[0] = 32.0
    assert picks(policy("smg"), costs, 3) == [0, 0, 0]
    costs.hits[:3] = 0.0
    assert picks(policy("smg"), costs, 3) == [2, 2, 2]


def test_smg_leaves_the_longest_match_where_it_is_far_above_the_mean() -> None:
    """30 requests where the mean is 10: 3 times as many, and 20 more."""
    costs = costs_of([Load(running=30), Load(), Load()], [160.0, 0.0, 0.0])
    assert set(picks(policy("smg", balance_abs=19.0, balance_rel=2.0), costs, 40)) == {1, 2}
    assert policy("smg", balance_abs=21.0, balance_rel=2.0).pick(costs) == 0
    assert policy("smg", balance_abs=19.0, balance_rel=3.0).pick(costs) == 0


def test_rtp_draws_encoders() -> None:
    costs = costs_of([Load(queued=50), Load(), Load()], stage=ENCODE)
    costs.pool.allow(2, False)
    counts = Counter(picks(policy("rtp"), costs, 200))
    assert set(counts) == {0, 1} and min(counts.values()) > 60


@pytest.mark.parametrize("name", ["cache_aware", "smg"])
def test_a_picture_always_goes_to_the_same_encoder(name: str) -> None:
    costs = costs_of([Load(queued=50), Load(), Load()], stage=ENCODE)
    chosen = {}
    for content in map(str, range(40)):
        costs.content = content
        chosen[content] = policy(name).pick(costs)
        assert policy(name).pick(costs) == chosen[content]
    assert set(chosen.values()) == {0, 1, 2}
    costs.pool.allow(2, False)
    for content, row in chosen.items():
        costs.content = content
        assert policy(name).pick(costs) == row or row == 2, "the others stay where they are"


def test_kv_asks_the_least_loaded_encoder_that_holds_the_picture() -> None:
    loads = [Load(queued=1), Load(queued=9), Load(queued=8), Load()]
    costs = costs_of(loads, [0.0, 64.0, 64.0], stage=ENCODE)
    assert picks(policy("kv", kv_encoders="cached"), costs, 3) == [2, 2, 2]
    costs.hits[:3] = 0.0
    assert picks(policy("kv", kv_encoders="cached"), costs, 3) == [3, 3, 3]


def test_rtp_counts_what_was_placed_where_no_blocks_are_told() -> None:
    loads = [Load(), Load(), Load(free_blocks=37, total_blocks=100)]
    costs = costs_of(loads, stage=DECODE)
    costs.pool.context_tokens[1] = 63.0 * 16
    counts = Counter(picks(policy("rtp"), costs, 3000))
    assert set(counts) == {0, 1, 2}
    assert counts[0] / counts[1] == pytest.approx(np.exp(0.001 * 63 * 16), rel=0.15)
    assert counts[1] / counts[2] == pytest.approx(1.0, rel=0.15)


def test_a_row_that_is_none_is_never_chosen_at_any_price() -> None:
    """The only worker left has no finite price."""
    costs = costs_of([Load()] * 3, stage=DECODE)
    costs.decode_ms = np.full(len(costs.pool), np.inf)
    costs.pool.allow(0, False)
    costs.pool.allow(2, False)
    assert set(picks(policy("cost"), costs, 40)) == {1}
