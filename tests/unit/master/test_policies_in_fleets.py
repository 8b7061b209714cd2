"""Policies in whole fleets: probed workers, absurd rates, several models, mixed layouts."""

from collections import Counter

import pytest

from protocol.kv_events import EmbeddingStored
from protocol.registry import Drain, Load, Rates
from services.admission.ticket import Ticket
from services.master.placement.policies.factory import POLICIES
from services.master.placement.policies.simple import LeastLoadedPolicy
from tests.support.master_fleets import LOAD, add, asking, hear, master, picture, place, sources


class Watching(LeastLoadedPolicy):
    """A user's own."""

    sees_media = True


def test_rtp_spreads_decodes_over_probed_workers() -> None:
    made = master("prefill", policy="rtp")
    for i in range(4):
        add(made, f"d{i}", "decode", events=[], load=Load())
    placed = Counter(place(made, asking(f"r{i}")).decode.instance_id for i in range(40))
    assert len(placed) == 4 and max(placed.values()) < 25


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_worker_with_an_absurd_rate_can_still_be_used(name: str) -> None:
    rates = Rates(transfer_bytes_per_ms=1e-320)
    made = master("encode", "prefill", policy=name)
    add(made, "d", "decode", load=Load(rates=rates), kv_bytes_per_token=1000)
    for i in range(5):
        assert place(made, asking(f"r{i}")).decode.instance_id == "d"


@pytest.mark.parametrize("name", ["round_robin", "kv"])
def test_models_take_turns_apart(name: str) -> None:
    made = master("encode", "encode", "prefill", "decode", policy=name)
    for role in ("encode", "encode", "prefill", "decode"):
        add(made, f"{len(made.registry.instances)}", role, model="n")
    used: dict[str, list[str]] = {"m": [], "n": []}
    for i in range(4):
        for model, encoders in used.items():
            asked = asking(f"{model}{i}", model=model, blocks=0, items=[picture(f"{model}{i}")])
            ((_, encoder),) = sources(place(made, asked))
            encoders.append(encoder)
    assert used == {"m": ["e0", "e1"] * 2, "n": ["4", "5"] * 2}


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"cost"}))
def test_every_worker_of_a_mixed_fleet_gets_its_share(name: str) -> None:
    """Of eight workers four do both: about half of all requests are not split."""
    made = master(*["prefill", "decode"] * 2, *["prefill_decode"] * 4, policy=name)
    placed = [place(made, asking(f"r{i}", blocks=0)) for i in range(100)]
    alone = Counter(p.decode.instance_id for p in placed if p.prefill is None)
    assert set(alone) == {"p4", "p5", "p6", "p7"}
    assert 30 < sum(alone.values()) < 70


def test_only_the_layout_that_is_used_takes_a_turn() -> None:
    made = master("prefill", "decode", *["prefill_decode"] * 2, policy="round_robin")
    placed = [place(made, asking(f"r{i}", blocks=0)) for i in range(60)]
    alone = [p.decode.instance_id for p in placed if p.prefill is None]
    assert alone == (["p2", "p3"] * 60)[: len(alone)]


@pytest.mark.parametrize("name", ["cost", "random"])
def test_a_refusal_that_waiting_helps_goes_before_one_that_it_does_not(name: str) -> None:
    made = master("prefill", "decode", "prefill_decode", policy=name, busy_requests=1)
    made.drain(Drain("p2"), 0.0)
    place(made, asking("a"))
    assert isinstance(made.schedule(asking("b"), 0.0), Ticket)


@pytest.mark.parametrize(("name", "states"), [("kv", {"cached"}), ("rtp", {"encode"})])
def test_what_the_prefill_worker_holds_is_encoded_again_by_some(
    name: str, states: set[str]
) -> None:
    made = master("encode", "prefill", "decode", policy=name)
    place(made, asking("a", items=[picture("x")]))
    hear(made, "p1", EmbeddingStored("x"))
    found = place(made, asking("b", blocks=0, items=[picture("x")]))
    assert {state for state, _ in sources(found)} == states


def test_an_encoder_that_holds_the_picture_is_not_taken_to_encode_it() -> None:
    made = master("encode", "prefill", "decode", policy="rtp")
    hear(made, "e0", EmbeddingStored("x"))
    pool = made.registry.fleet("m").pools["encode"]
    for i in range(3):
        place(made, asking(f"r{i}", blocks=0, items=[picture("x")]))
    assert (pool.busy_until[0], pool.queued_tokens[0], pool.requests[0]) == (0.0, 0.0, 3.0)
    place(made, asking("new", blocks=0, items=[picture("y")]))
    assert pool.busy_until[0] > 0.0


def test_a_policy_of_the_users_own_that_sees_media_uses_what_prefill_holds() -> None:
    made = master("encode", "prefill", "decode", policy=f"{__name__}:Watching")
    hear(made, "p1", EmbeddingStored("x"))
    found = place(made, asking("a", blocks=0, items=[picture("x")]))
    assert sources(found) == [("cached", "p1")]


def test_kv_does_not_go_by_guesses_of_what_prefill_holds() -> None:
    """The first request is under way when the second comes."""
    made = master("encode", "decode", policy="kv")
    add(made, "p", "prefill", events=[], load=LOAD)
    found = [place(made, asking(f"r{i}", blocks=0, items=[picture("x")])) for i in range(2)]
    assert [sources(one) for one in found] == [[("encode", "e0")]] * 2
