"""Workers that change their role: what goes with them, whose word counts, who decides."""

import math
from typing import Any

import pytest

from protocol.errors import InvalidRequest
from protocol.kv_events import BlockStored, EmbeddingStored
from protocol.placement import Finished
from protocol.registry import Heartbeat, Load
from services.master.config import MasterConfig
from services.master.fleet.instance import Instance
from services.master.master import Master
from tests.support.master_fleets import (
    LOAD,
    PROMPT,
    add,
    asking,
    hear,
    master,
    picture,
    place,
    prefill_of,
    sources,
)
from tests.support.master_nodes import fleet_of, info

ROLES = ["decode", "prefill", "encode"]


def elastic(*roles: str, **config: Any) -> Master:
    """Workers of the role any, named a0, a1, ... that begin so; nothing moves by itself."""
    made = master(**{"elastic": False, **config})
    for number, role in enumerate(roles):
        add(made, f"a{number}", role, roles=ROLES, encodes=True)
    return made


def at(made: Master, name: str) -> Instance:
    return made.registry.instances[name]


def requests(made: Master, name: str) -> float:
    return float(at(made, name).pool.requests[at(made, name).row])


def test_a_move_changes_where_requests_go_and_keeps_what_is_cached() -> None:
    made = elastic("encode", "prefill", "decode", "decode")
    hear(made, "a2", BlockStored([*PROMPT]))
    assert made.move("a2", "prefill", 0.0)
    assert prefill_of(place(made, asking("r"))) == "a2"
    assert place(made, asking("s")).decode.instance_id == "a3"
    assert at(made, "a2").target.role == "prefill"
    assert made.registry.roles.moved == {("m", "decode", "prefill", "call"): 1}
    assert not made.move("a2", "prefill", 0.0), "it serves that already"


def test_embeddings_of_a_worker_that_encodes_no_more_are_still_fetched_there() -> None:
    made = elastic("encode", "encode", "prefill", "decode")
    hear(made, "a0", EmbeddingStored("p", 32, 1 << 16))
    made.move("a0", "decode", 0.0)
    assert sources(place(made, asking("r", items=[picture("p")]))) == [("cached", "a0")]


def test_what_a_worker_was_charged_for_goes_with_it_and_ends_once() -> None:
    made = elastic("encode", "prefill", "decode", "decode", settle=1e3)
    placed = place(made, asking("r"))
    name = placed.decode.instance_id
    made.move(name, "prefill", 0.0)
    assert requests(made, name) == 1.0
    made.registry.instances[name].pool.report(at(made, name).row, LOAD, 50.0)
    assert requests(made, name) == 1.0, "the report cannot show it yet"
    made.finished(Finished("r", "prefill"), 0.1)
    made.finished(Finished("r"), 0.2)
    for worker in ("a0", "a1", "a2", "a3"):
        assert requests(made, worker) == 0.0
        instance = at(made, worker)
        assert float(instance.pool.free_blocks[instance.row]) == LOAD.free_blocks
    assert len(made.ledger) == 0


def test_work_that_waits_before_a_prefill_worker_is_known_after_its_move() -> None:
    made = elastic("encode", "prefill", "prefill", "decode")
    first = prefill_of(place(made, asking("r", blocks=0)))
    made.move(first, "encode", 0.0)
    instance = at(made, first)
    assert float(instance.pool.busy_until[instance.row]) == pytest.approx(160.0)
    assert sources(place(made, asking("s", items=[picture("p")]))) == [("encode", "a0")]


def test_no_row_of_the_old_pool_is_left() -> None:
    made = elastic("decode", "decode", "decode")
    pools = made.registry.fleets["m"].pools
    for turn in range(200):
        made.move("a0", "prefill" if turn % 2 == 0 else "decode", float(turn))
    assert (pools["prefill"].count, pools["decode"].count) == (0, 3)
    assert len(pools["prefill"]) == len(pools["decode"]) == 64
    assert pools["decode"].able == 3


def test_a_worker_with_one_role_is_not_moved() -> None:
    made = elastic("decode")
    add(made, "d", "decode")
    for name, role, field in (("d", "prefill", "role"), ("x", "decode", "instance_id")):
        with pytest.raises(InvalidRequest) as refused:
            made.move(name, role, 0.0)  # type: ignore[arg-type]
        assert refused.value.param == field
    with pytest.raises(InvalidRequest, match="role: store"):
        add(made, "s", "store", roles=ROLES)


def beat(made: Master, name: str, role: Any, now: float) -> Any:
    return made.heartbeat(Heartbeat(name, load=Load(), role=role), now).role


def test_a_worker_is_told_its_role_until_it_says_it() -> None:
    made = elastic("decode", "decode", lease=9.0)
    made.move("a0", "prefill", 1.0)
    assert beat(made, "a0", "decode", 2.0) == "prefill", "it had not heard of it"
    assert beat(made, "a0", "prefill", 3.0) == "prefill"
    assert beat(made, "a0", "encode", 4.0) == "encode", "another master's order"
    assert at(made, "a0").info.role == "encode"


def test_a_worker_that_listens_to_another_master_goes_its_own_way() -> None:
    made = elastic("decode", "decode", lease=9.0)
    made.move("a0", "prefill", 1.0)
    assert beat(made, "a0", "decode", 10.0) == "prefill"
    assert beat(made, "a0", "decode", 10.1) == "decode"
    assert at(made, "a0").pool.kind == "decode"


def test_registering_again_with_another_role_is_no_restart() -> None:
    made = elastic("decode", "decode")
    hear(made, "a0", BlockStored([*PROMPT]))
    known = at(made, "a0")
    add(made, "a0", "prefill", roles=ROLES, encodes=True)
    assert at(made, "a0") is known and known.info.role == "prefill"
    assert made.registry.fleets["m"].blocks.count(known.slot) == len(PROMPT)


def test_a_drained_worker_stays_drained_in_another_role() -> None:
    made = elastic("decode", "decode", "prefill")
    at(made, "a0").drained = True
    at(made, "a0").update_penalty(0.0)
    made.move("a0", "prefill", 0.0)
    assert math.isinf(at(made, "a0").pool.penalty[at(made, "a0").row])
    assert prefill_of(place(made, asking("r"))) == "a2"


def test_masters_that_share_a_fleet_agree_on_roles_and_one_decides() -> None:
    fleet = fleet_of(count=3)
    a, b, c = fleet.nodes
    for node, name in ((a, "u"), (b, "v"), (c, "w")):
        node.register(info(name, "decode", roles=ROLES))
    fleet.at(1.0)
    assert [node.leads() for node in fleet.nodes] == [True, False, False]
    a.master.move("w", "encode", 1.0)
    fleet.deliver()
    assert {n.master.registry.instances["w"].info.role for n in fleet.nodes} == {"encode"}
    answer = c.master.heartbeat(Heartbeat("w", role="decode"), 1.1)
    assert answer.role == "encode", "its home tells it"
    b.master.move("w", "prefill", 1.2)
    c.beat("w", role="decode")
    fleet.deliver()
    assert {n.master.registry.instances["w"].info.role for n in fleet.nodes} == {"prefill"}
    a.replicator.connected = False
    assert not a.leads(), "another master may be there"


def test_an_only_master_leads() -> None:
    assert fleet_of(count=1).nodes[0].leads()
    assert Master(MasterConfig()).config.elastic
