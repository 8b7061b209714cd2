"""On which workers a request runs: prefill and decode apart, or both on one."""

from typing import Any

import msgspec
import pytest

from protocol.errors import Unavailable
from protocol.kv_events import BlockStored
from protocol.registry import Heartbeat, Load
from services.master.master import Master
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
)


def test_decode_workers_prefill_themselves_if_no_other_does() -> None:
    made = master("decode", "decode")
    hear(made, "d1", BlockStored(list(PROMPT)))
    placement = place(made, asking("a"))
    assert (placement.prefill, placement.decode.instance_id) == (None, "d1")
    assert placement.hit_tokens == 159


def test_the_cheaper_of_split_and_combined_is_taken() -> None:
    made = master("prefill", "decode", "prefill_decode")
    hear(made, "p2", BlockStored(list(PROMPT)))
    assert place(made, asking("a")).prefill is None
    made = master("prefill", "decode", "prefill_decode")
    hear(made, "p0", BlockStored(list(PROMPT)))
    assert prefill_of(place(made, asking("a"))) == "p0"


def knowing(name: str, **config: Any) -> Master:
    """Two of each; decode worker `name` holds the first 7 of the prompt's 10 blocks."""
    made = master("prefill", "prefill", "decode", "decode", **config)
    hear(made, name, BlockStored(list(PROMPT[:7])))
    return made


def test_a_decode_worker_computes_the_little_that_it_has_not() -> None:
    placement = place(knowing("d3"), asking("a"))
    assert (placement.prefill, placement.decode.instance_id) == (None, "d3")
    assert placement.hit_tokens == 7 * 16
    assert placement.ttft_ms == pytest.approx(48.0)


def test_a_decode_worker_computes_no_more_than_it_may() -> None:
    assert place(knowing("d3", decode_prefill_tokens=47), asking("a")).prefill is not None
    assert place(knowing("d3", decode_prefill_tokens=48), asking("a")).prefill is None
    made = master("prefill", "decode")
    hear(made, "d1", BlockStored(list(PROMPT[:4])))
    assert place(made, asking("a")).prefill is not None, "it has less than it would compute"


def test_dynamos_router_leaves_short_rests_to_the_decode_worker_that_it_has_chosen() -> None:
    """48 of 160 tokens are missing at d3: 30 %."""
    options = {"policy": "kv", "kv_local_tokens": 49, "kv_local_ratio": 0.31}
    placement = place(knowing("d3", **options), asking("a"))
    assert (placement.prefill, placement.decode.instance_id) == (None, "d3")
    assert placement.hit_tokens == 7 * 16
    for change in ({"kv_local_tokens": 48}, {"kv_local_ratio": 0.3}, {"kv_local_tokens": 0}):
        assert place(knowing("d3", **{**options, **change}), asking("a")).prefill is not None
    made = knowing("d3", **options)
    add(made, "e9", "encode")
    items = [picture("a", offset=64, tokens=49)]
    assert place(made, asking("a", items=items)).prefill is not None, "it computes no pictures"


def test_a_decode_worker_computes_no_pictures() -> None:
    for tokens, alone in ((48, True), (49, False)):
        made = knowing("d3")
        add(made, "e9", "encode")
        items = [picture("a", offset=64, tokens=tokens)]
        assert (place(made, asking("a", items=items)).prefill is None) == alone


def test_a_prompt_does_not_disturb_a_crowd() -> None:
    """Each of those that decode would wait for it."""
    made = knowing("d3")
    crowd = Load(running=60, free_blocks=1000, total_blocks=1000, rates=RATES)
    made.heartbeat(Heartbeat("d2", load=crowd), 0.0)
    made.heartbeat(Heartbeat("d3", load=crowd), 0.0)
    assert place(made, asking("a")).prefill is not None


def test_less_than_a_block_more_is_left_to_decode_at_any_rates() -> None:
    made = master("prefill", "decode")
    slow = msgspec.structs.replace(RATES, prefill_base_ms=50.0, prefill_ms_per_cached_token=1.0)
    add(made, "d9", "decode", load=msgspec.structs.replace(LOAD, rates=slow))
    for name in ("p0", "d1", "d9"):
        hear(made, name, BlockStored(list(PROMPT)))
    for avoid, name in (("d1", "d9"), ("d9", "d1")):
        placement = place(made, asking(name, avoid=[avoid]))
        assert (placement.prefill, placement.decode.instance_id) == (None, name)


def test_the_first_token_does_not_wait_for_a_place_at_a_decode_worker() -> None:
    made = master("prefill")
    for name, running in (("d1", 3), ("d2", 4)):
        load = Load(running=running, free_blocks=1000, total_blocks=1000, rates=RATES)
        add(made, name, "decode", load=load, max_running=4)
        hear(made, name, BlockStored(list(PROMPT)))
    assert place(made, asking("a", avoid=["d2"])).prefill is None
    assert prefill_of(place(made, asking("b", avoid=["d1"]))) == "p0"


def test_a_decode_worker_that_never_prefilled_is_no_faster_than_prefill_is() -> None:
    made = master("prefill", "decode", "decode", prefill_ms_per_token=0.001)
    unmeasured = msgspec.structs.replace(RATES, prefill_ms_per_token=0.0)
    add(made, "d9", "decode", load=msgspec.structs.replace(LOAD, rates=unmeasured))
    hear(made, "d9", BlockStored(list(PROMPT[:7])))
    assert place(made, asking("a")).ttft_ms == pytest.approx(48.0)


def test_a_full_decode_worker_does_not_keep_a_prompt_to_itself() -> None:
    made = knowing("d3", busy_requests=1)
    full = msgspec.structs.replace(LOAD, running=1)
    made.heartbeat(Heartbeat("d3", load=full), 0.0)
    placement = place(made, asking("a"))
    assert placement.prefill is not None and placement.decode.instance_id == "d2"


@pytest.mark.parametrize("policy", ["kv", "round_robin"])
def test_other_policies_keep_prefill_apart(policy: str) -> None:
    assert place(knowing("d3", policy=policy), asking("a")).prefill is not None


def test_what_is_not_decoded_goes_to_a_worker_that_prefills() -> None:
    """Alone, if there is one; then to one that does both, or decodes."""
    for roles, chosen in (
        (("prefill", "decode", "prefill_decode"), "p0"),
        (("decode", "prefill_decode"), "p1"),
        (("prefill",), "p0"),
        (("decode",), "d0"),
    ):
        placement = place(master(*roles), asking("a", max_tokens=1, pooling=True))
        assert placement.prefill is None
        assert placement.decode.instance_id == chosen


def test_what_one_worker_is_to_do_goes_to_no_pair() -> None:
    """As a request that a proxy passes on: a worker that only prefills stays out of it."""
    for roles, chosen in (
        (("prefill", "decode"), {"d1"}),
        (("prefill", "decode", "prefill_decode"), {"d1", "p2"}),
    ):
        for avoid in ([], ["d1"]):
            placement = place(master(*roles), asking("a", alone=True, avoid=avoid))
            assert placement.prefill is None and placement.decode.instance_id in chosen
    with pytest.raises(Unavailable, match="no decode"):
        place(master("prefill"), asking("a", alone=True))


def test_that_worker_is_one_which_has_the_prompt() -> None:
    made = master("prefill", "decode", "decode", "prefill_decode", "prefill_decode")
    for name in ("d2", "p4"):
        hear(made, name, BlockStored(list(PROMPT)))
    chosen = {place(made, asking(str(n), alone=True)).decode.instance_id for n in range(2)}
    assert chosen <= {"d2", "p4"}
