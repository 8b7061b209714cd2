"""What Dynamo's router lets one switch, at our master: each switch changes what is placed."""

import random
from typing import Any

import pytest

from protocol.errors import ConfigError, Unavailable
from protocol.kv_events import BlockStored
from protocol.placement import Finished
from protocol.refs import KVRef
from protocol.settings import resolve
from services.master.config import MasterConfig
from services.master.index.predicted_cache import PredictedCache
from services.master.index.prefix_index import HolderIndex
from services.master.master import Master
from services.master.placement.policies.factory import load_policy
from services.master.placement.policies.simple import RoundRobinPolicy
from tests.support.master_fleets import PROMPT, add, asking, hear, master, place, prefill_of
from tests.support.master_nodes import SOURCES, Node, fleet_of, info
from tests.support.master_nodes import Fleet as Masters


def given(*flags: str) -> MasterConfig:
    return resolve(MasterConfig, flags, {})


def test_dynamos_switches_are_taken_by_its_names() -> None:
    off = given(
        "--no-router-kv-events", "--no-router-track-output-blocks", "--no-router-assume-kv-reuse",
        "--no-router-replica-sync", "--enforce-disagg", "--router-prune-target-ratio", "0.8",
        "--router-ttl-secs", "60", "--router-kv-overlap-score-weight", "2",
        "--busy-threshold", "0.5",
    )  # fmt: skip
    assert not (
        off.follow_events or off.track_output_blocks or off.assume_kv_reuse or off.replica_sync
    )
    assert (off.enforce_disagg, off.predict_prune_ratio, off.predict_ttl) == (True, 0.8, 60.0)
    assert (off.overlap_weight, off.busy_kv_usage) == (2.0, 0.5)
    with pytest.raises(ConfigError, match=r"^--predict-prune-ratio: "):
        given("--router-prune-target-ratio", "0")


@pytest.mark.parametrize("name", ["round-robin", "round_robin"])
def test_a_router_mode_is_a_policy(name: str) -> None:
    config = given("--router-mode", name)
    assert isinstance(load_policy(config, random.Random(1)), RoundRobinPolicy)
    with pytest.raises(ConfigError, match="direct"):
        Master(given("--router-mode", "direct"))


def test_without_events_a_master_goes_by_what_it_has_placed() -> None:
    made = master("prefill", "prefill", "decode", follow_events=False)
    assert place(made, asking("a")).hit_tokens == 0
    made.finished(Finished("a"), 0.0)
    assert place(made, asking("b"), 1.0).hit_tokens == 159


def test_a_worker_whose_events_are_not_followed_is_the_same_when_it_registers_again() -> None:
    made = master("prefill", "decode", follow_events=False)
    slot = made.registry.instances["p0"].slot
    place(made, asking("a"))
    made.finished(Finished("a"), 0.0)
    add(made, "p0", "prefill")
    assert made.registry.instances["p0"].slot == slot
    assert place(made, asking("b"), 1.0).hit_tokens == 159, "its cache is not forgotten"


@pytest.mark.parametrize(("kept", "left"), [(1.0, {3, 4, 5, 6}), (0.5, {5, 6})])
def test_a_full_prediction_is_pruned_to_a_share(kept: float, left: set[int]) -> None:
    index: HolderIndex[int] = HolderIndex(100)
    cache = PredictedCache(index, 0, 1e9, 4, kept)
    for key in range(1, 7):
        cache.use([key], float(key))
        if key <= 4:
            assert len(cache) == key, "nothing is dropped before it is full"
    assert set(index.keys(0)) >= {5, 6}
    assert len(cache) <= 4
    full: HolderIndex[int] = HolderIndex(100)
    cache = PredictedCache(full, 0, 1e9, 4, kept)
    cache.use([1, 2], 0.0)
    cache.use([4, 3], 1.0)
    cache.use([6, 5], 2.0)
    assert set(full.keys(0)) == left


def test_the_newest_prompt_stays_whole_however_much_is_pruned() -> None:
    index: HolderIndex[int] = HolderIndex(100)
    cache = PredictedCache(index, 0, 1e9, 4, 0.1)
    cache.use([1, 2], 0.0)
    cache.use([5, 6, 7], 1.0)
    assert set(index.keys(0)) == {5, 6, 7}


def blocks_counted(**config: Any) -> tuple[float, float]:
    """(of prefill, of decode), for a prompt of 10 blocks, 6 of them cached at both, and an answer
    of 64 tokens."""
    made = master("prefill", "decode", decode_prefill_tokens=0, **config)
    for name in ("p0", "d1"):
        hear(made, name, BlockStored(list(PROMPT[:6])))
    placed = place(made, asking("a", max_tokens=64))
    assert placed.prefill is not None
    held = made.ledger._held["a"]
    assert held.prefill is not None and held.decode is not None
    return held.prefill.blocks, held.decode.blocks


def test_what_is_counted_as_used_at_once() -> None:
    assert blocks_counted() == (4, 8)
    assert blocks_counted(track_output_blocks=False) == (4, 4)
    assert blocks_counted(assume_kv_reuse=False) == (10, 14)
    assert blocks_counted(assume_kv_reuse=False, track_output_blocks=False) == (10, 10)


def test_an_enforced_split_never_lets_one_worker_do_both() -> None:
    made = master("prefill", "decode", "prefill_decode", enforce_disagg=True)
    for name in ("d1", "p2"):
        hear(made, name, BlockStored(list(PROMPT)))
    placed = place(made, asking("a"))
    assert (prefill_of(placed), placed.decode.instance_id) == ("p0", "d1")
    assert place(master("prefill", "decode", "prefill_decode"), asking("a")).decode is not None


@pytest.mark.parametrize(
    ("roles", "lacking"),
    [(["decode"], "prefill"), (["prefill"], "decode"), (["prefill_decode"], "decode")],
)
def test_an_enforced_split_without_both_is_an_error(roles: list[str], lacking: str) -> None:
    made = master(*roles, enforce_disagg=True)
    with pytest.raises(Unavailable, match=f"no {lacking} worker is up") as refused:
        made.schedule(asking("a"), 0.0)
    assert refused.value.code == "disagg_unavailable"


def test_an_enforced_split_between_workers_that_cannot_hand_over_is_an_error() -> None:
    made = master(enforce_disagg=True)
    for name, role in (("p0", "prefill"), ("d0", "decode")):
        kv = KVRef("", "i", (), 0, compatibility=name).to_params()
        add(made, name, role, kv_endpoint=kv)
    with pytest.raises(Unavailable, match="no decode worker takes the KV") as refused:
        made.schedule(asking("a"), 0.0)
    assert refused.value.code == "disagg_unavailable"


def counted(masters: Masters) -> list[float]:
    a, b = masters.nodes
    a.schedule(asking("r", blocks=0, prompt_tokens=1000))
    masters.deliver()
    return [a.requests("w"), b.requests("w")]


def test_masters_that_do_not_sync_count_their_own_placements_alone() -> None:
    assert counted(fleet_of("w")) == [1, 1]
    apart = fleet_of("w", replica_sync=False)
    assert counted(apart) == [1, 0]
    a, b = apart.nodes
    b.master.finished(Finished("r"), 1.0)
    apart.deliver()
    assert [a.requests("w"), b.requests("w")] == [0, 0], "an end reaches the master that placed it"


def test_a_master_that_follows_no_events_leaves_them_to_the_others() -> None:
    masters = Masters()
    masters.nodes[0] = Node("blind", follow_events=False)
    blind, following = masters.nodes
    blind.register(info("w"))
    masters.deliver()
    for joined in blind.replicator.own(0.0):  # as whenever Redis is back
        blind.replicator.tell(joined)
    masters.deliver()
    assert following.master.registry.instances["w"].info.events == SOURCES
    for node, guesses in ((blind, True), (following, False)):
        assert (node.master.registry.instances["w"].guessed is not None) == guesses
