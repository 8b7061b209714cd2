"""How many workers an autoscaler should run."""

import math

import numpy as np
import pytest

from protocol.placement import Finished
from protocol.registry import InstanceInfo, InstanceRole, Load, Rates
from services.master.config import MasterConfig
from services.master.fleet.pool import Pool
from services.master.fleet.wanted_workers import WantedWorkers, decoding
from services.master.master import Master
from tests.support.master_fleets import asking, master, picture, place
from tests.support.master_nodes import fleet_of, info

HOLD_S = 300.0


def registered(role: InstanceRole, count: int, **config: float) -> Master:
    master = Master(MasterConfig(**config))  # type: ignore[arg-type]
    for number in range(count):
        url = f"http://127.0.0.1:{9000 + number}"
        info = InstanceInfo(
            instance_id=f"{role}-{number}", role=role, url=url, model="m", generation="1",
            max_running=10, block_size=16, load=Load(free_blocks=90, total_blocks=100),
        )  # fmt: skip
        master.register(info, 0.0, lease_s=1e6)
    return master


def look(wanted: WantedWorkers, master: Master, at_s: float, waiting: int = 0) -> dict[str, int]:
    wanted.observe(master.registry.fleets, {"m": waiting}, at_s * 1e3)
    return {role: count for _, role, count in wanted.counts()}


def test_a_master_that_has_just_started_wants_what_is_there() -> None:
    master = registered("decode", 4)
    assert look(WantedWorkers(master.config), master, 0.0) == {"decode": 4}


def test_more_at_once_and_fewer_only_after_the_hold() -> None:
    master = registered("decode", 2)
    wanted = WantedWorkers(master.config)
    pool = master.registry.fleets["m"].pools["decode"]
    assert look(wanted, master, 0.0) == {"decode": 2}
    pool.requests[pool.penalty == 0.0] = 10.0
    assert look(wanted, master, 2.0, waiting=8) == {"decode": 4}  # 28 of 10 places each, 70 % full
    pool.requests[:] = 0.0
    assert look(wanted, master, HOLD_S) == {"decode": 4}
    assert look(wanted, master, 3.0 + HOLD_S) == {"decode": 1}


def test_a_queue_of_work_before_prefill_is_measured_by_the_objective() -> None:
    master = registered("prefill", 1, ttft_slo=2.0)
    wanted = WantedWorkers(master.config)
    pool = master.registry.fleets["m"].pools["prefill"]
    pool.busy_until[pool.penalty == 0.0] = 5_000.0
    assert look(wanted, master, 0.0) == {"prefill": 5}  # 5 s of work, 1 s of it for each


@pytest.mark.parametrize(
    ("requests", "ttft_slo", "wanted"), [(3.0, 0.0, 2), (12.0, 0.0, 3), (3.0, 2.0, 20)]
)
def test_a_few_requests_may_wait_before_prefill_however_long_they_take(
    requests: float, ttft_slo: float, wanted: int
) -> None:
    """20 s of work at one worker, which is busy: as 7 of 10 workers may be."""
    master = registered("prefill", 1, ttft_slo=ttft_slo)
    pool = master.registry.fleets["m"].pools["prefill"]
    pool.busy_until[pool.penalty == 0.0] = 20_000.0
    pool.requests[pool.penalty == 0.0] = requests
    assert look(WantedWorkers(master.config), master, 0.0) == {"prefill": wanted}


def test_what_waits_before_prefill_is_looked_at_by_worker() -> None:
    """A long prompt at one, many short ones at the other: neither has both many and long ones."""
    master = registered("prefill", 2)
    pool = master.registry.fleets["m"].pools["prefill"]
    rows = np.flatnonzero(pool.penalty == 0.0)
    pool.busy_until[rows], pool.requests[rows] = (100_000.0, 400.0), (1.0, 40.0)
    assert look(WantedWorkers(master.config), master, 0.0) == {"prefill": 3}


def test_requests_that_wait_for_pictures_are_none_of_the_few_before_prefill() -> None:
    made = master("encode", "prefill", "decode")
    for number in range(40):
        place(made, asking(f"r{number}", blocks=0, items=[picture(f"p{number}", tokens=100)]))
    place(made, asking("long", blocks=0, prompt_tokens=20_000))
    assert look(WantedWorkers(made.config), made, 0.0)["prefill"] == 2


def test_kv_that_is_used_up_wants_more_workers() -> None:
    master = registered("decode", 2)
    wanted = WantedWorkers(master.config)
    pool = master.registry.fleets["m"].pools["decode"]
    pool.free_blocks[pool.penalty == 0.0] = 0.0
    assert look(wanted, master, 0.0) == {"decode": 3}


def decoding_ones(asked: int, ready: int, slo: float | None = None, **config: float) -> Master:
    """One decode worker that takes 10 ms a step and 1 ms for each request in it, 10 at most.
    `asked` requests are placed, `ready` of them have left prefill."""
    made = registered("decode", 1, **config)
    worker = next(iter(made.registry.instances.values()))
    rates = Rates(decode_base_ms=10.0, decode_ms_per_request=1.0)
    worker.pool.report(worker.row, Load(free_blocks=1000, total_blocks=1000, rates=rates), 0.0)
    made.register(info("p", "prefill"), 0.0, lease_s=1e6)
    for number in range(asked):
        place(made, asking(f"r{number}", blocks=0, tpot_slo_s=slo))
    for number in range(ready):
        made.finished(Finished(f"r{number}", "prefill"), 0.0)
    return made


def decode_pool(made: Master) -> Pool:
    return made.registry.fleets["m"].pools["decode"]


def wanted_decode(made: Master, waiting: int = 0) -> float:
    """Were workers to use all of what they have."""
    return decoding(made.config, decode_pool(made), waiting) * made.config.wanted_utilisation


def test_decode_wants_what_it_does_beside_full_batches() -> None:
    """5 requests take steps of 15 ms, 333 tokens/s; 10 would take 20 ms, 500 tokens/s: a batch
    that is half full does two thirds of what a full one does."""
    assert wanted_decode(decoding_ones(12, 5)) == pytest.approx(2 / 3)
    assert wanted_decode(decoding_ones(10, 10)) == pytest.approx(1.0)


def test_requests_that_wait_at_a_worker_or_at_the_master_want_workers_in_full() -> None:
    assert wanted_decode(decoding_ones(15, 15)) == pytest.approx(1.5)
    assert wanted_decode(decoding_ones(15, 15), waiting=20) == pytest.approx(3.5)
    assert wanted_decode(decoding_ones(9, 9), waiting=20) < 1.0


def test_requests_that_wait_for_kv_want_as_much_as_those_that_have_it() -> None:
    made = decoding_ones(4, 4)
    pool = decode_pool(made)
    row = int(np.flatnonzero(pool.penalty == 0.0)[0])
    for free, wanted in ((60.0, 0.94), (0.0, 3.0)):
        pool.free_blocks[row] = free
        pool.learn(row, Rates())  # what follows from the blocks is reckoned anew
        assert wanted_decode(made, waiting=8) == pytest.approx(wanted)


def test_kv_that_is_promised_to_requests_at_prefill_wants_no_decode_workers() -> None:
    """One request decodes, 14 are still at prefill."""
    made = decoding_ones(15, 1)
    pool = decode_pool(made)
    row = int(np.flatnonzero(pool.penalty == 0.0)[0])
    pool.free_blocks[row] = 0.0
    pool.learn(row, Rates())
    assert wanted_decode(made, waiting=60) == wanted_decode(made)


def test_workers_are_full_with_as_many_requests_as_they_may_have() -> None:
    made = decoding_ones(4, 4, busy_requests=4)
    assert wanted_decode(made, waiting=4) == pytest.approx(wanted_decode(made) + 1)


def test_requests_that_wait_for_the_time_per_token_want_as_much_as_others() -> None:
    """No third request keeps it: 3 would take steps of 13 ms."""
    assert wanted_decode(decoding_ones(2, 2, 0.0125), waiting=10) == pytest.approx(12 / 2.5)
    assert wanted_decode(decoding_ones(2, 2, 0.013), waiting=10) == pytest.approx(2 / 3)


def test_decode_wants_as_many_workers_as_keep_the_time_per_token() -> None:
    """3 requests take steps of 13 ms, as long as they allow, by their own word or by the flag."""
    for made in (decoding_ones(3, 2, 0.013), decoding_ones(3, 2, tpot_slo=0.013)):
        assert wanted_decode(made) == pytest.approx(2 / 3)
    assert wanted_decode(decoding_ones(3, 2, 10.0, tpot_slo=0.013)) < 0.5  # their word counts


@pytest.mark.parametrize("slo", [0.005, 1e-6, 1e-320])
def test_a_time_per_token_that_one_request_alone_would_miss_wants_nothing(slo: float) -> None:
    made = decoding_ones(1, 1, slo)
    assert wanted_decode(made) == pytest.approx(2 / 11)
    assert 0.0 < decode_pool(made).haste.max() <= 1e3  # steps per ms


@pytest.mark.parametrize("slo", [0.011, 0.013, 0.025])
def test_idle_workers_want_nothing_whatever_the_time_per_token(slo: float) -> None:
    assert wanted_decode(decoding_ones(0, 0, tpot_slo=slo)) == 0.0
    assert wanted_decode(decoding_ones(1, 0, tpot_slo=slo)) == 0.0  # one is still at prefill


def test_the_context_of_what_waits_is_not_taken_from_what_decodes() -> None:
    """A worker's report has the context of the requests that decode alone."""
    made = decoding_ones(6, 2)
    pool, rates = decode_pool(made), Rates(decode_base_ms=10.0, decode_ms_per_context_token=0.1)
    row = next(one.row for one in made.registry.instances.values() if one.pool is pool)
    kv = {"free_blocks": 1000, "total_blocks": 1000}
    load = Load(running=2, queued=4, context_tokens=320, rates=rates, **kv)
    pool.report(row, load, 60e3)
    assert wanted_decode(made) == pytest.approx((10 * 2 / 10 + 32) / 42)


def test_a_worker_that_tells_no_blocks_hides_no_other_that_is_full() -> None:
    made = registered("decode", 2)
    pool = decode_pool(made)
    rows = np.flatnonzero(pool.penalty == 0.0)
    pool.free_blocks[rows], pool.total_blocks[rows] = (0.0, math.inf), (100.0, 0.0)
    assert wanted_decode(made) == pytest.approx(2.0)


@pytest.mark.parametrize("role", ["encode", "prefill"])
def test_workers_that_are_always_busy_are_too_few(role: InstanceRole) -> None:
    master = registered(role, 3)
    wanted = WantedWorkers(master.config)
    pool = master.registry.fleets["m"].pools[role]
    for second in range(120):
        pool.busy_until[pool.penalty == 0.0] = second * 1e3 + 50.0
        found = look(wanted, master, float(second))
    assert found == {role: 5}


def test_the_master_looks_by_itself_and_still_wants_a_worker_when_the_last_is_gone() -> None:
    master = registered("encode", 1)
    assert list(master.wanted.counts()) == []
    for at_s in (1.0, 2e6, 4e6):
        master.expire(at_s)
        assert list(master.wanted.counts()) == [("m", "encode", 1)]
    assert not master.registry.instances


def awaiting(made: Master) -> dict[str, float]:
    """Requests by role that wait for another one."""
    pools = made.registry.fleets["m"].pools
    return {role: float(pools[role].awaiting().requests.sum()) for role in ("prefill", "decode")}


def test_what_waits_for_another_stage_is_no_load_of_its_own() -> None:
    """An encoder that is short makes neither prefill nor decode want workers."""
    made = master("encode", "prefill", "decode")
    for number in range(40):
        place(made, asking(f"r{number}", blocks=0, items=[picture(f"p{number}", tokens=100)]))
    assert awaiting(made) == {"prefill": 40.0, "decode": 40.0}
    found = look(WantedWorkers(made.config), made, 0.0)
    assert found == {"encode": 2, "prefill": 1, "decode": 1}
    made.finished(Finished("r0", "encode", ["p0"]), 0.0)
    assert awaiting(made) == {"prefill": 39.0, "decode": 40.0}
    made.finished(Finished("r0", "prefill"), 0.0)
    assert awaiting(made) == {"prefill": 39.0, "decode": 39.0}
    made.finished(Finished("r1"), 0.0)
    assert awaiting(made) == {"prefill": 38.0, "decode": 38.0}


def test_other_masters_count_alike_what_waits() -> None:
    fleet = fleet_of()
    first, second = fleet.nodes
    for role in ("encode", "prefill", "decode"):
        first.register(info(role[0], role))
    fleet.deliver()
    first.place("r", items=[picture("p")], avoid=[])
    fleet.deliver()
    assert awaiting(first.master) == awaiting(second.master) == {"prefill": 1.0, "decode": 1.0}
    first.master.finished(Finished("r", "encode", ["p"]), 0.0)
    fleet.deliver()
    assert awaiting(second.master) == {"prefill": 0.0, "decode": 1.0}
