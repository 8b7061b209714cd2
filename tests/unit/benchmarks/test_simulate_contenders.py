"""Who is compared: what is drawn, what a peer may refuse by."""

import random

import pytest

from benchmarks.simulate.contenders import (
    CACHED,
    CONDITIONAL,
    LARGEST,
    OURS,
    PEERS,
    SPACES,
    Contender,
    Range,
    blind,
    borrowing,
    published,
    refusing,
    trials,
)
from benchmarks.simulate.records import Shape
from services.master.placement.policies.factory import load_policy
from tests.support.known_loads import ONE


@pytest.mark.parametrize("policy", [OURS, *PEERS])
def test_every_contender_is_a_policy_of_the_master(policy: str) -> None:
    kinds = [one for kind in published(policy, [ONE]) for one in kind]
    for contender in [*kinds, *trials(policy, [ONE], 10, 1, tells=False, max_running=64)]:
        config = contender.config(1)
        assert load_policy(config, random.Random(1)).config is config
        assert all(getattr(config, name) == value for name, value in contender.options.items())


def drawn(policy: str, count: int, *, tells: bool = False) -> list[Contender]:
    return trials(policy, [ONE], count, 1, tells=tells, max_running=64)


def test_what_a_told_master_refuses_first_is_tuned_as_well() -> None:
    told = [one.options.get("refuse_first") for one in drawn(OURS, 20, tells=True)]
    assert set(told) == {None, "largest"}
    assert not any("refuse_first" in one.options for one in drawn(OURS, 20))


@pytest.mark.parametrize("policy", SPACES)
def test_defaults_lie_within_what_is_searched(policy: str) -> None:
    config = Contender(policy, ONE).config(1)
    for name, values in SPACES[policy].items():
        default = getattr(config, name)
        if isinstance(values, Range):
            # 0 is no such limit; `kv_local_tokens` and the temperature are 0 as published.
            assert values.low <= default <= values.high or default == 0, name
        else:
            assert values.value != default, name


def test_half_of_what_may_be_drawn_stays_as_published() -> None:
    found = drawn("kv", 400)
    for name in (*SPACES["kv"], *blind(64)):
        assert sum(name in one.options for one in found) == pytest.approx(200, abs=40), name


def test_every_policy_is_tried_with_the_same_limits() -> None:
    names = blind(64).keys()
    limits = [[{k: v for k, v in one.options.items() if k in names} for one in drawn(policy, 8)]
              for policy in (OURS, *PEERS)]  # fmt: skip
    assert any(limits[0]) and limits == [limits[0]] * len(limits)


def test_peers_refuse_by_what_they_know_and_ours_by_objectives() -> None:
    names = blind(64).keys()
    one = Contender("kv", ONE, {"overlap_credit": 2.0, "max_queue": 0}, "tuned")
    first, *others = refusing(one, 30, 1, 64)
    assert first == one and {x.kind for x in others} == {"tuned, refusing"}
    assert all(x.options["overlap_credit"] == 2.0 and names & x.options.keys() for x in others)
    assert any("max_queue" not in x.options for x in others), "what was tuned goes, too"
    told = drawn(OURS, 50, tells=True)
    assert not any(names & x.options.keys() for x in told)
    assert not any(x.borrows for x in (one, *told, *drawn("rtp", 9, tells=True)))


def test_a_peer_with_our_refusals_has_none_of_its_own() -> None:
    found = borrowing("kv", [ONE, Shape(1, 2, 1)], 20, 1)
    assert all(x.borrows and not blind(64).keys() & x.options.keys() for x in found)
    options = [x.options for x in found]
    for wanted in ({}, CONDITIONAL, CACHED):
        assert wanted in options and {**wanted, **LARGEST} in options
    assert {x.shape for x in found} == {ONE, Shape(1, 2, 1)} and len(found) > 2 * 4 * 2 + 20


@pytest.mark.parametrize("policy", PEERS)
def test_every_peer_may_have_our_refusals(policy: str) -> None:
    found = borrowing(policy, [ONE], 5, 1)
    assert found and all(x.tells and not x.only_ttft for x in found)


def test_peers_may_have_as_many_requests_as_the_workers_can_run() -> None:
    for most in (64, 256):
        found = trials("smg", [ONE], 300, 1, tells=False, max_running=most)
        counts = [x.options["busy_requests"] for x in found if "busy_requests" in x.options]
        assert most // 20 <= min(counts) < most / 10 and most / 2 < max(counts) <= most


def test_dynamos_encoders_are_chosen_by_their_caches_where_there_are_any() -> None:
    kinds = [kind[0].kind for kind in published("kv", [ONE])]
    assert kinds == ["", "conditional", "cached", "conditional, cached"]
    assert [kind[0].kind for kind in published("kv", [Shape(0, 1, 1)])] == ["", "conditional"]
