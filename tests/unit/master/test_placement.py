"""Where requests go: caches, queues, room, and load counted when placed."""

from collections import Counter

import pytest

from protocol.errors import InvalidRequest, ModelNotFound
from protocol.kv_events import BlockStored
from protocol.placement import Finished, ScheduleRequest
from protocol.registry import Heartbeat, InstanceName, Load
from services.master.listener import MasterListener
from services.master.placement.reservation import Reservation
from tests.support.master_fleets import (
    LOAD,
    PROMPT,
    RATES,
    add,
    asking,
    hear,
    master,
    picture,
    place,
    prefill_of,
    sources,
)


def test_a_prompt_goes_where_its_prefix_is() -> None:
    made = master("prefill", "prefill", "prefill", "decode")
    hear(made, "p1", BlockStored(list(PROMPT[:6])))
    hear(made, "p2", BlockStored(list(PROMPT[:3])))
    placement = place(made, asking("r"))
    assert prefill_of(placement) == "p1"
    assert placement.hit_tokens == 96
    assert placement.ttft_ms == pytest.approx(160 - 96)
    assert placement.decode.instance_id == "d3"


def test_the_last_token_is_always_computed() -> None:
    made = master("prefill", "decode")
    hear(made, "p0", BlockStored(list(PROMPT)))
    assert place(made, asking("r")).hit_tokens == 159


def test_load_counts_when_placed() -> None:
    made = master(*["prefill"] * 4, *["decode"] * 4)
    placed = [place(made, asking(f"r{i}", blocks=0)) for i in range(8)]
    assert set(Counter(map(prefill_of, placed)).values()) == {2}
    assert set(Counter(p.decode.instance_id for p in placed).values()) == {2}


def test_a_hot_prefix_spreads_before_it_makes_a_hotspot() -> None:
    made = master(*["prefill"] * 4, "decode")
    hear(made, "p0", BlockStored(list(PROMPT)))
    counts = Counter(prefill_of(place(made, asking(f"r{i}", prompt_tokens=200))) for i in range(40))
    assert counts["p0"] == max(counts.values()), "the owner takes the most"
    assert len(counts) == 4, "and not all"


def test_requests_that_come_together_share_a_prefix_that_is_still_computed() -> None:
    made = master(*["prefill"] * 8, "decode")
    first = place(made, asking("a"))
    second = place(made, asking("b"))
    assert prefill_of(first) == prefill_of(second)
    assert (first.hit_tokens, second.hit_tokens) == (0, 159)
    made.finished(Finished("a"), 0.1)
    made.finished(Finished("b"), 0.1)
    fleet = made.registry.fleet("m")
    assert (len(fleet.expected), len(made.ledger)) == (0, 0)


def test_prompts_that_part_after_a_held_prefix_are_each_expected() -> None:
    made = master("prefill", "decode")
    hear(made, "p0", BlockStored(list(PROMPT[:3])))
    other = [*PROMPT[:3], *range(2000, 2007)]
    place(made, asking("a"))
    place(made, asking("b", block_keys=other))
    assert place(made, asking("c", block_keys=[*PROMPT[:8], 1, 2])).hit_tokens == 8 * 16


def test_a_worker_that_leaves_is_expected_to_hold_nothing() -> None:
    made = master("prefill", "decode")
    place(made, asking("a"))
    made.deregister(InstanceName("p0"), 0.0)
    add(made, "p9", "prefill")
    assert place(made, asking("b")).hit_tokens == 0


def test_reports_correct_what_was_counted() -> None:
    made = master("prefill", "prefill", "decode")
    busy = prefill_of(place(made, asking("r", blocks=0, prompt_tokens=1000)))
    other = {"p0": "p1", "p1": "p0"}[busy]
    assert prefill_of(place(made, asking("s", blocks=0, prompt_tokens=100))) == other
    made.heartbeat(Heartbeat(busy, load=LOAD), 0.3)
    made.heartbeat(Heartbeat(other, load=Load(queued_tokens=500, rates=RATES)), 0.3)
    assert prefill_of(place(made, asking("t", blocks=0), 0.3)) == busy


def test_a_report_does_not_forget_what_its_worker_cannot_know_yet() -> None:
    made = master("prefill", "prefill", "decode")
    busy = prefill_of(place(made, asking("r", blocks=0, prompt_tokens=1000)))
    made.heartbeat(Heartbeat(busy, load=LOAD), 0.1)
    pool = made.registry.fleet("m").pools["prefill"]
    row = pool.ids.index(busy)
    assert float(pool.requests[row]) == 1.0
    assert float(pool.busy_until[row]) == pytest.approx(1100.0)
    assert float(pool.free_blocks[row]) == 1000 - 63
    assert prefill_of(place(made, asking("s", blocks=0), 0.1)) != busy


def test_a_decode_worker_without_room_is_passed_over() -> None:
    made = master("prefill", "decode", busy_kv_usage=0.0)
    add(made, "d9", "decode", load=Load(free_blocks=5, total_blocks=1000, rates=RATES))
    assert {place(made, asking(f"r{i}")).decode.instance_id for i in range(5)} == {"d1"}


def test_what_a_request_failed_on_is_avoided_and_its_load_given_back() -> None:
    made = master("prefill", "prefill", "decode")
    first = prefill_of(place(made, asking("a")))
    second = prefill_of(place(made, asking("a", avoid=[first])))
    assert second != first
    assert len(made.ledger) == 1
    assert float(made.registry.fleet("m").pools["prefill"].requests.sum()) == 1.0


def test_requests_that_no_proxy_ends_are_given_up() -> None:
    made = master("encode", "prefill", "decode", request_ttl=5.0)
    place(made, asking("a", items=[picture("x")]))
    place(made, asking("b", deadline_s=1.0))
    made.expire(1.5)
    assert len(made.ledger) == 1
    made.expire(5.0)
    fleet = made.registry.fleet("m")
    assert len(made.ledger) == 0
    assert [float(pool.requests.sum()) for pool in fleet.pools.values()] == [0.0] * 5
    assert (fleet.pending, len(fleet.expected)) == ({}, 0)


def test_caches_without_events_are_predicted() -> None:
    made = master("decode", predict_ttl=10.0)
    for name in ("p7", "p8", "e7"):
        add(made, name, "encode" if name[0] == "e" else "prefill", events=[])
    first = place(made, asking("a", items=[picture("x", 150, 10)]))
    made.finished(Finished("a", "encode", ["x"]), 0.1)
    made.finished(Finished("a"), 0.2)
    second = place(made, asking("b", items=[picture("x", 150, 10)]), 0.3)
    assert prefill_of(second) == prefill_of(first)
    assert second.hit_tokens == 159
    assert sources(second)[0][0] == "cached"
    made.finished(Finished("b"), 0.4)
    made.expire(11.0)
    assert place(made, asking("c"), 11.0).hit_tokens == 0


def test_bad_requests() -> None:
    made = master("prefill", "decode")
    with pytest.raises(InvalidRequest) as caught:
        made.schedule(asking("a", prompt_tokens=15), 0.0)
    assert caught.value.param == "block_keys"
    with pytest.raises(InvalidRequest):
        made.schedule(asking("a", items=[picture("x", 150)]), 0.0)
    with pytest.raises(ModelNotFound):
        made.schedule(asking("a", model="other"), 0.0)


def test_two_models_share_nothing() -> None:
    made = master("prefill", "decode")
    for role in ("prefill", "decode"):
        add(made, f"other-{role}", role, model="n")
    hear(made, "p0", BlockStored(list(PROMPT)))
    assert place(made, asking("a", model="m")).hit_tokens == 159
    other = place(made, asking("b", model="n"))
    assert (prefill_of(other), other.hit_tokens) == ("other-prefill", 0)


def test_debug_tells_the_numbers_behind_the_choice() -> None:
    made = master("prefill", "prefill", "decode")
    hear(made, "p1", BlockStored(list(PROMPT[:5])))
    debug = place(made, asking("a", debug=True)).debug
    assert debug is not None
    assert debug["prefill"]["chosen"] == "p1"
    assert debug["prefill"]["workers"]["p1"]["hit_tokens"] == 80
    assert debug["prefill"]["workers"]["p0"]["work_ms"] == 160
    assert debug["decode"]["chosen"] == "d2"


def test_sessions_stick_to_one_of_equal_workers() -> None:
    made = master(*["prefill"] * 5, "decode")
    chosen = set()
    for i in range(10):
        request = asking(f"r{i}", blocks=0, session="s", prompt_tokens=1)
        chosen.add(prefill_of(place(made, request, float(i))))
        made.finished(Finished(f"r{i}"), i + 0.5)
    assert len(chosen) == 1


class Placed(MasterListener):
    """Keeps what the last request holds."""

    held: Reservation

    def placed(self, request: ScheduleRequest, held: Reservation, now_ms: float) -> None:
        self.held = held


@pytest.mark.parametrize("ours", [True, False])
def test_decode_shows_a_request_once_it_has_been_asked(ours: bool) -> None:
    """A worker of ours is asked at once, as it waits for KV itself; others once prefill has
    ended."""
    placed = Placed()
    made = master(listener=placed, settle=0.2)
    endpoint = {"remote_engine_id": "p"} if ours else None
    add(made, "p", "prefill", kv_endpoint=endpoint)
    add(made, "d", "decode")
    place(made, asking("r"))
    charge = placed.held.decode
    assert charge is not None
    prefill_ms = 160.0  # of RATES, on an idle worker
    assert charge.visible_at == pytest.approx(200.0 + (0.0 if ours else prefill_ms), abs=0.5)
