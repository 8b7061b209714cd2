"""Workers that report nothing: their load is what was placed, mended by what is read of them."""

from typing import Any

import pytest

from protocol.placement import Finished, ScheduleRequest
from protocol.registry import InstanceInfo, Load
from services.master.config import MasterConfig
from services.master.fleet.added_workers import WorkerMetrics
from services.master.master import Master
from services.master.probing.vllm_metrics import metrics_from
from tests.support.master_fleets import picture, place, prefill_of

METRICS = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="1000"} 1.0
vllm:prompt_tokens_total{engine="0"} 1e6
"""


def test_what_vllm_tells_is_read() -> None:
    load = Load(queued=2, running=7, free_blocks=750, total_blocks=1000)
    assert metrics_from(METRICS) == WorkerMetrics(load, block_size=16)


@pytest.mark.parametrize(
    "text",
    [b"", b"\x00\xff\n", b"triptych:num_requests_running 3\n", b"vllm:num_requests_running{\n",
     b"vllm:num_requests_running nan\n", b"vllm:num_requests_running{a=\"b\"} -1\n",
     b"vllm:num_requests_running{} 1e300\n", b"vllm:" + b"x" * 5_000_000],
)  # fmt: skip
def test_other_texts_tell_nothing(text: bytes) -> None:
    assert metrics_from(text) is None


def test_numbers_without_blocks_and_nonsense_beside_good_ones() -> None:
    text = b"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc x\nvllm:cache_config_info 1.0\n"
    assert metrics_from(text) == WorkerMetrics(Load(running=1))


def relayed(*roles: str, **config: Any) -> Master:
    """Workers of another engine, named e0, p1, ... as they were added by hand."""
    made = Master(MasterConfig(**{"seed": 1, "lease": 1e6, **config}))
    for i, role in enumerate(roles):
        name = f"{role[0]}{i}"
        made.register(
            InstanceInfo(name, role, f"http://{name}:1", "m", dialect="openai"),  # type: ignore[arg-type]
            0.0,
        )
    return made


def asked(name: str, tokens: int = 1000, **fields: Any) -> ScheduleRequest:
    return ScheduleRequest(name, tokens, model="m", predicted=True, max_tokens=100, **fields)


def test_what_is_read_counts_beside_what_was_placed() -> None:
    made = relayed("prefill", "decode", "decode")
    for _ in range(3):
        made.registry.observed("d1", Load(running=9, free_blocks=10, total_blocks=1000), 0.0)
    assert {place(made, asked(f"r{i}")).decode.instance_id for i in range(5)} == {"d2"}
    made.registry.observed("d1", Load(free_blocks=1000, total_blocks=1000), 100.0)
    pool = made.registry.fleet("m").pools["decode"]
    assert pool.requests[:2].tolist() == [0.0, 5.0]
    made.registry.observed("d2", Load(), 20_000.0)
    assert pool.requests[1] == 5.0, "decode has not been asked yet: prefill is not over"


@pytest.mark.parametrize("roles", [("encode", "prefill", "decode"), ("encode", "decode")])
def test_a_prompt_that_waits_for_a_long_encode_is_not_lost(roles: tuple[str, ...]) -> None:
    """Its worker has not been asked and shows nothing of it, until its last picture is encoded."""
    made = relayed(*roles)
    asking = asked("r", items=[picture("x"), picture("y", 32)])
    placed = place(made, asking)
    at = made.registry.instances[prefill_of(placed)]
    pool, row, idle = at.pool, at.row, Load(free_blocks=1000, total_blocks=1000)
    made.finished(Finished("r", "encode", ["x"], elapsed_s=0.1), 0.1)
    for now in (1.0, 7.0, 13.0, 19.0):
        made.registry.observed(at.info.instance_id, idle, now * 1e3)
    assert (pool.requests[row], pool.queued_tokens[row]) == (1.0, 1000.0)
    made.finished(Finished("r", "encode", ["y"], elapsed_s=20.0), 20.0)
    for now in (20.1, 25.2):
        made.registry.observed(at.info.instance_id, idle, now * 1e3)
    assert pool.requests[row] == 1.0, "it takes a moment until the worker shows it"
    for now in (26.0, 32.0):
        made.registry.observed(at.info.instance_id, idle, now * 1e3)
    assert pool.requests[row] == 0.0, "it should have been shown for long"


def test_a_prompt_that_waits_for_anothers_encode_is_not_lost() -> None:
    made = relayed("encode", "prefill", "decode", encode_ms_per_token=400.0, busy_queue_ms=0)
    place(made, asked("first", items=[picture("x", tokens=50)]))
    (item,) = place(made, asked("second", items=[picture("x", tokens=50)])).encoders
    assert item.state == "pending"
    pool = made.registry.fleet("m").pools["prefill"]
    for now in (1.0, 7.0, 13.0, 19.0):
        made.registry.observed("p1", Load(free_blocks=1000, total_blocks=1000), now * 1e3)
    assert pool.requests[0] == 2.0


def test_prefill_is_learnt_from_reports_and_loads_follow() -> None:
    made = relayed("prefill", "prefill", "decode", prefill_ms_per_token=0.2)
    now, chosen = 0.0, {"p0": 0, "p1": 0}
    free = {"p0": 0.0, "p1": 0.0}
    truth = {"p0": 1e-4, "p1": 4e-4}  # seconds a token
    for number in range(300):
        now += 0.08
        name = f"r{number}"
        at = prefill_of(place(made, asked(name, block_keys=[]), now))
        chosen[at] += 1
        free[at] = max(free[at], now) + truth[at] * 1000
        made.finished(Finished(name, "prefill", elapsed_s=free[at] - now), free[at])
        made.finished(Finished(name), free[at])
    learnt = made.registry.fleet("m").pools["prefill"].token_ms[:2].tolist()
    assert learnt == [pytest.approx(0.1, rel=0.2), pytest.approx(0.4, rel=0.2)]
    assert chosen["p0"] > 3 * chosen["p1"], "the faster one gets more"


def test_encoders_and_decode_steps_are_learnt() -> None:
    made = relayed("encode", "prefill", "decode")
    now = 0.0
    for number in range(60):
        now += 10.0
        names = [f"r{number}-{i}" for i in range(1 + number % 4)]
        for name in names:
            place(made, asked(name, items=[picture(name, tokens=500)]), now)
            made.finished(Finished(name, "encode", [name], elapsed_s=0.05), now + 0.05)
            now += 1.0
        for name in names:
            made.finished(Finished(name, "prefill", elapsed_s=0.1), now)
        step = 0.010 + 0.002 * len(names)
        for name in names:
            report = Finished(name, elapsed_s=0.2 + 99 * step, first_s=0.2, output_tokens=100)
            made.finished(report, now + 0.2 + 99 * step)
    fleet = made.registry.fleet("m")
    encode, decode = fleet.pools["encode"], fleet.pools["decode"]
    assert encode.base_ms[0] + 500 * encode.token_ms[0] == pytest.approx(50.0, rel=0.1)
    assert decode.step_ms[0] + 3 * decode.step_request_ms[0] == pytest.approx(16.0, rel=0.1)


def test_impossible_reports_teach_nothing() -> None:
    made = relayed("prefill", "decode", breaker_failures=0)
    for number in range(20):
        place(made, asked(f"r{number}"), 1.0)
        late = Finished(f"r{number}", "prefill", elapsed_s=1e6)
        made.finished(late, 2.0)
        made.finished(Finished(f"r{number}", failed=["d1"], elapsed_s=0.5, output_tokens=9), 2.0)
    assert made.registry.fleet("m").pools["prefill"].token_ms[0] == 0.2
