"""A worker that prefills gets embeddings of its own compatibility, or the request a refusal."""

from typing import Any

import pytest

from protocol.errors import Unavailable
from protocol.kv_events import BlockStored, EmbeddingStored
from protocol.placement import Placement
from protocol.registry import Drain
from services.master.master import Master
from tests.support.master_fleets import (
    add,
    asking,
    hear,
    master,
    picture,
    place,
    prefill_of,
    sources,
)

TURNS = 20
ROLES = {"e": "encode", "p": "prefill", "d": "decode", "f": "pdfusion"}


def fleet(**kinds: str) -> Master:
    """Workers by name, whose first letter is their role, with the kind of their EC."""
    made = master()
    for name, kind in kinds.items():
        add(made, name, ROLES[name[0]], ec_compatibility=kind)
    return made


def ways(made: Master, **fields: Any) -> set[tuple[str, str]]:
    """(worker that prefills, state and source of its picture)"""
    found = set()
    for turn in range(TURNS):
        given = {"blocks": 0, "items": [picture(f"x{turn}")], **fields}
        placed = place(made, asking(f"r{turn}", **given))
        (source,) = sources(placed)
        found.add((prefill_of(placed), " ".join(source)))
    return found


def refusal(made: Master) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        made.schedule(asking("r", blocks=0, items=[picture("x")]), 0.0)
    return caught.value


def test_pictures_are_encoded_where_prefill_can_read_them() -> None:
    made = fleet(e1="nixl", e2="shm", p1="nixl", p2="shm", d1="shm")
    assert ways(made) == {("p1", "encode e1"), ("p2", "encode e2")}


def test_a_worker_that_can_read_none_gets_no_pictures_but_text() -> None:
    made = fleet(e1="nixl", p1="shm", p2="nixl", d1="nixl")
    assert ways(made) == {("p2", "encode e1")}
    prefilled = {prefill_of(place(made, asking(f"t{turn}", blocks=0))) for turn in range(TURNS)}
    assert "p1" in prefilled


def test_one_that_does_not_say_fits_all() -> None:
    made = fleet(e1="nixl", p1="", d1="shm")
    assert ways(made) == {("p1", "encode e1")}
    assert ways(fleet(e1="", p1="shm", d1="shm")) == {("p1", "encode e1")}


def test_decode_does_it_all_where_only_it_can_read() -> None:
    made = fleet(e1="shm", p1="nixl", d1="shm")
    placed = place(made, asking("r", blocks=0, items=[picture("x")]))
    assert placed.prefill is None and placed.decode.instance_id == "d1"
    assert sources(placed) == [("encode", "e1")]


def test_it_is_refused_at_once_where_none_fits() -> None:
    made = fleet(e1="nixl", p1="shm", d1="shm")
    error = refusal(made)
    assert (error.code, error.status) == ("incompatible_peer", 503)
    assert "--ec-transfer-config" in error.message
    add(made, "e2", "encode", ec_compatibility="shm")
    assert ways(made) == {("p1", "encode e2")}
    made.drain(Drain("e2"), 0.0)
    assert refusal(made).code == "incompatible_peer"


def test_an_embedding_is_fetched_only_where_it_can_be_read() -> None:
    made = fleet(e1="nixl", e2="shm", p1="shm", d1="shm")
    hear(made, "e1", EmbeddingStored("x", 32, 1))
    assert ways(made, items=[picture("x")]) <= {("p1", "encode e2"), ("p1", "pending e2")}


def test_an_encode_for_another_kind_is_not_joined() -> None:
    made = fleet(e1="nixl", p1="nixl", d1="nixl")
    assert ways(made, items=[picture("x")]) == {("p1", "encode e1"), ("p1", "pending e1")}
    made.drain(Drain("p1"), 0.0)
    add(made, "e2", "encode", ec_compatibility="shm")
    add(made, "p2", "prefill", ec_compatibility="shm")
    placed = place(made, asking("s", blocks=0, items=[picture("x")]))
    assert (prefill_of(placed), sources(placed)) == ("p2", [("encode", "e2")])


def test_where_the_prefix_is_there_no_embedding_is_read() -> None:
    made = fleet(e1="nixl", p1="shm", d1="shm")
    request = asking("r", items=[picture("x")])
    hear(made, "p1", BlockStored([*request.block_keys]))
    placed = made.schedule(request, 0.0)
    assert isinstance(placed, Placement) and sources(placed) == [("prefix", "")]


def test_workers_that_encode_by_themselves_read_none() -> None:
    made = fleet(f1="")
    add(made, "e1", "encode", ec_compatibility="nixl")
    assert {way[0] for way in ways(made)} == {"f1"}
