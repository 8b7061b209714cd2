"""The simulator: the same seed gives the same run; steps in closed form take the same time; turns
wait for the answers that they quote."""

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec
import pytest
from msgspec.structs import astuple

from benchmarks.simulate.clock import Clock
from benchmarks.simulate.fleet import Fleet
from benchmarks.simulate.metrics import Outcome, outcome
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import Picture, Prompt, Session, TraceRequest
from benchmarks.simulate.records import Objectives, Record, Shape, Span
from benchmarks.simulate.simulation import Simulation
from benchmarks.simulate.traces import TRACES
from benchmarks.simulate.worker import Worker, encode_request, generate_request
from protocol.placement import Placement, ScheduleRequest
from protocol.types import EncodeOutput, GenerateRequest, RequestOutput, SamplingParams
from services.master.config import MasterConfig
from services.master.placement.waiting import PlacementTicket
from services.mock.engine import Engine
from services.mock.settings import EngineSettings
from services.mock.timing import Noise, Timing

TIMING = Timing(
    encode_base_ms=5.0, encode_patch_ms=0.01, prefill_base_ms=3.0, prefill_token_ms=0.1,
    prefill_cached_ms=0.002, decode_base_ms=10.0, decode_request_ms=0.5, decode_context_ms=0.003,
    kv_block_ms=0.2, ec_token_ms=0.01,
)  # fmt: skip
SMALL = Profile(
    "small", TIMING, block_size=16, prefill_blocks=512, decode_blocks=4096, step_tokens=256,
    max_running=64, message_s=0.0, jitter=0.0,
)  # fmt: skip


def requests(count: int, seed: int = 3) -> list[tuple[float, TraceRequest]]:
    """Random prompts, of which many begin alike, close together, and when they arrive."""
    rng, time, found = random.Random(seed), 0.0, []
    for number in range(count):
        prompt = Prompt(16)
        prompt.add(1 + rng.randrange(3), 16 * rng.randrange(12))
        prompt.add(100 + number, rng.randrange(1, 400))
        time += rng.expovariate(20.0)
        output = rng.randrange(2, 40)
        found.append((time, prompt.request(f"r{number}", 1000 + number, output)))
    return found


def tokens_of(request: TraceRequest) -> list[int]:
    """Token ids whose blocks are equal where the keys of the request's blocks are."""
    ids: list[int] = []
    for key in request.prompt_keys:
        ids += random.Random(key).choices(range(1 << 30), k=16)
    rest = request.tokens - len(ids)
    return ids + random.Random(request.name).choices(range(1 << 30), k=rest)


def in_engines(
    trace: list[tuple[float, TraceRequest]], steps: int, alone: bool
) -> dict[str, list[float]]:
    """First and last token of each request: one prefill and one decode engine, handing over, or
    `alone` one that computes prompts and answers. `steps` may be made before anything is said."""
    times: dict[str, list[float]] = {}
    clock = Clock()

    def engine(role: str, port: int) -> Engine:
        settings = EngineSettings(
            role=role, instance_id=role, host="h", port=port,  # type: ignore[arg-type]
            num_blocks=512 if role == "prefill" else 4096, max_num_seqs=64,
            max_num_batched_tokens=256, steps_at_once=steps, lease_s=1e6,
        )  # fmt: skip
        return Engine(settings, TIMING, Noise(), clock.time)

    def told(engine: Engine, outputs: list[RequestOutput], encoded: list[EncodeOutput]) -> None:
        for output in outputs:
            times.setdefault(output.request_id, []).append(clock.now)

    prefill, decode = engine("prefill", 0), engine("decode", 1)
    fleet = Fleet(clock, told, message_s=0.001)
    for member in (prefill, decode):
        fleet.join(member)
    for arrival, request in trace:
        clock.run(until=arrival)
        sampling = SamplingParams(max_tokens=request.output, temperature=0.0)
        made = GenerateRequest(request.name, tokens_of(request), sampling)
        if not alone:
            ahead = prefill.kv.endpoint() | {"remote_request_id": request.name}
            over = {"do_remote_decode": True}
            fleet.add(prefill, msgspec.structs.replace(made, kv_transfer_params=over))
            made.kv_transfer_params = ahead
        fleet.add(decode, made)
    clock.run()
    for member in (prefill, decode):
        assert member.check_integrity() == [] and member.blocks.usage == 0.0
    assert decode.core.counters["steps"] > 0
    return {name: [found[0], found[-1]] for name, found in times.items()}


@pytest.mark.parametrize("alone", [True, False])
def test_steps_in_closed_form_take_the_time_of_single_ones(alone: bool) -> None:
    """Chunked prefill, prefix reuse, hand-over, growing and shrinking batches."""
    trace = requests(60, seed=3 + alone)
    single, closed = (in_engines(trace, steps, alone) for steps in (1, 1 << 30))
    assert single.keys() == closed.keys() == {request.name for _, request in trace}
    for name, expected in single.items():
        assert closed[name] == pytest.approx(expected, abs=1e-6), name


@dataclass
class Alone:
    """One simulated worker, what it is asked for, and what it has put out by now."""

    worker: Worker
    fleet: Fleet
    clock: Clock
    ended: list[float]


def one_worker(role: str, *known: TraceRequest) -> Alone:
    clock, ended = Clock(), list[float]()
    worker = Worker(f"{role}-0", SMALL, clock, 0, {request.name: request for request in known})

    def told(engine: Engine, outputs: list[RequestOutput], encoded: list[EncodeOutput]) -> None:
        ended.extend(clock.now for output in (*outputs, *encoded))

    fleet = Fleet(clock, told, on_step=lambda engine, step: worker.stepped(step))
    fleet.join(worker.engine)
    return Alone(worker, fleet, clock, ended)


def test_a_prefill_worker_stops_before_a_picture_and_goes_on_when_it_comes() -> None:
    prompt = Prompt(16)
    prompt.add(1, 100)
    prompt.add_picture(7, 50)
    prompt.add(2, 10)
    request = prompt.request("r", 3, 1)
    case = one_worker("prefill", request)
    case.fleet.add(case.worker.engine, generate_request(request))
    case.clock.run(until=1.0)
    (running,) = case.worker.engine.core.scheduler.running
    assert (running.num_computed, case.ended) == (100, [])
    case.worker.engine.ec.found(request.items[0].mm_hash, 50)
    case.fleet.wake(case.worker.engine)
    case.clock.run(until=2.0)
    assert case.ended == [pytest.approx(1.0 + 0.0005 + 0.003 + 60 * 0.0001)]
    assert sum(case.worker.worked) == pytest.approx(2 * 0.003 + 160 * 0.0001)


def test_an_encoder_encodes_a_picture_once_however_many_ask() -> None:
    case = one_worker("encode")
    for name in "abc":
        case.fleet.add_encode(case.worker.engine, encode_request(name, Picture("a", 0, 100)))
    case.clock.run(until=1.0)
    case.fleet.add_encode(case.worker.engine, encode_request("d", Picture("a", 0, 100)))
    assert case.ended == [pytest.approx(0.005 + 400 * 0.00001)] * 3 + [1.0]
    assert case.worker.engine.counters()["mm_encoded"] == 1


def test_time_is_spread_over_the_windows_it_falls_into() -> None:
    case = one_worker("decode")
    clock, worker = case.clock, case.worker
    clock.at(4.0, worker.count, 2)
    clock.at(25.0, worker.count, -1)
    clock.at(26.0, worker.count, -1)
    clock.run(30.0)
    held = worker.held
    assert [sum(held[k : k + 10]) for k in (0, 10, 20)] == pytest.approx([12.0, 20.0, 11.0])


COUNT = 50  # pictures asked about in a run that is compared
SHORT, FLEET, PROFILE = Span(1.0, 2.0, most_s=10.0), Shape(2, 3, 3), Profile("p", TIMING)


def simulated(
    sessions: Iterable[Session], policy: str = "cost", seed: int = 5, pace: float = 20.0,
    span: Span = SHORT, shape: Shape = FLEET, profile: Profile = PROFILE,
) -> tuple[Simulation, list[Record], Outcome]:  # fmt: skip
    config = MasterConfig(policy=policy, seed=1)
    simulation = Simulation(profile, shape, config, Objectives(profile), seed)
    records = simulation.run(sessions, pace, span)
    return simulation, records, outcome(simulation, records)


def few() -> Iterable[Session]:
    """Enough for all workers to tell the master of themselves."""
    return itertools.islice(TRACES["chat"](128, 1), 5)


def run(policy: str, seed: int) -> list[tuple[float, float, int]]:
    sessions = itertools.islice(TRACES["pictures"](128, seed), COUNT)
    simulation, records, found = simulated(sessions, policy, seed)
    assert 0.0 < found.kv_hits < 1.0 and 0.0 < found.ec_hits < 1.0
    assert set(found.utilisation) == {"encode", "prefill", "decode"}
    assert all(0.0 < share <= 1.0 for share in found.utilisation.values())
    simulation.clock.run(simulation.clock.now + 60.0)
    assert len(simulation.records) == COUNT
    assert all(record.last >= record.first > record.arrival for record in simulation.records)
    for worker in simulation.workers:
        assert worker.engine.check_integrity() == [] and worker.engine.blocks.usage == 0.0
    assert len(simulation.service.master.ledger) <= 1
    return [(record.first, record.last, record.cached) for record in records]


@pytest.mark.parametrize("policy", ["cost", "rtp", "random"])
def test_the_same_seed_gives_the_same_run(policy: str) -> None:
    found = run(policy, 5)
    assert run(policy, 5) == found != run(policy, 6)


def test_a_turn_waits_for_the_answer_that_it_quotes() -> None:
    simulation, _, _ = simulated(
        TRACES["multi_turn"](128, 3), pace=20.0, span=Span(1.0, 6.0, lifetimes=1.0, most_s=8.0)
    )
    ended = {record.request.name: record for record in simulation.records}
    later = [r for r in simulation.records if not r.request.name.endswith(".0")]
    assert len(later) > 10
    for record in later:
        session, _, turn = record.request.name.partition(".")
        before = ended[f"{session}.{int(turn) - 1}"]
        due = before.last - simulation.profile.message_s + record.request.think_s
        assert record.arrival == pytest.approx(due)
        quoted = before.request.keys
        assert record.request.keys[: len(quoted)] == quoted


def test_at_least_ten_lifetimes_are_measured_and_the_fleet_stays_loaded_to_the_end() -> None:
    span = Span(warm_s=2.0, least_s=1.0, most_s=60.0)
    simulation, records, found = simulated(TRACES["chat"](128, 2), pace=2.0, span=span)
    start, end = simulation.measured
    assert found.lifetimes >= 10.0 and end - start > 1.0
    assert start == 2.0 and all(start <= record.arrival < end for record in records)
    assert simulation.records[-1].arrival > max(record.arrival for record in records)
    assert found.offered == pytest.approx(2.0, rel=0.35)


def test_the_rest_of_a_refused_session_still_arrives() -> None:
    """Else a fleet that refuses would look less loaded."""
    profile = Profile("tiny", TIMING, prefill_blocks=2, decode_blocks=2)
    prompt = Prompt(128)
    turns = []
    for turn in range(3):
        prompt.add(turn, 600)  # more than the caches hold
        turns.append(prompt.request(f"s.{turn}", 10 + turn, 5, "s", 0.5))
    sessions = [Session(0.0, tuple(turns))]
    span = Span(0.0, 4.0, most_s=4.0)
    _, records, found = simulated(sessions, pace=1.0, span=span, profile=profile)
    assert [bool(record.refused) for record in records] == [True] * 3
    assert found.refused == 1.0 and found.attained == 0.0


def test_a_mixed_fleet_has_workers_of_several_speeds() -> None:
    profile = replace(PROFILE, speeds=(1.0, 0.5))
    simulation, _, _ = simulated(few(), profile=profile, shape=Shape(0, 2, 2))
    fast, slow = (worker.load().rates for worker in simulation.prefills.values())
    assert slow.prefill_ms_per_token == pytest.approx(2 * fast.prefill_ms_per_token)


def test_workers_misjudge_their_speed_as_far_as_they_are_said_to() -> None:
    profile = replace(PROFILE, rate_error=0.2)
    simulation, _, _ = simulated(few(), profile=profile, shape=Shape(0, 2, 3))
    exact = TIMING.rates(4, profile.row_bytes)
    shares = {
        rate / true - 1.0
        for worker in simulation.workers
        for rate, true in zip(astuple(worker.load().rates), astuple(exact), strict=True)
        if true
    }
    assert len(shares) > 30, "each of each worker by another share"
    assert min(shares) < -0.1 and max(shares) > 0.1 and max(map(abs, shares)) <= 0.2
    master = simulation.service.master
    known = [instance.info.load.rates for instance in master.registry.instances.values()]
    assert {*known} == {worker.load().rates for worker in simulation.workers}
    again, _, _ = simulated(few(), profile=profile, shape=Shape(0, 2, 3))
    assert [w.load().rates for w in again.workers] == [w.load().rates for w in simulation.workers]


@pytest.mark.parametrize(("tells", "only_ttft"), [(False, False), (True, False), (True, True)])
def test_what_a_master_is_told_of_objectives(tells: bool, only_ttft: bool) -> None:
    config, aims = MasterConfig(seed=1), Objectives(PROFILE)
    simulation = Simulation(
        PROFILE, Shape(0, 1, 1), config, aims, 5, tells=tells, only_ttft=only_ttft
    )
    asked: list[ScheduleRequest] = []
    schedule = simulation.service.master.schedule

    def noted(request: ScheduleRequest, now: float) -> Placement | PlacementTicket:
        asked.append(msgspec.structs.replace(request))
        return schedule(request, now)

    simulation.service.master.schedule = noted  # type: ignore[method-assign]
    simulation.run(itertools.islice(TRACES["chat"](128, 1), 5), 5.0, SHORT)
    assert asked and all(bool(one.ttft_slo_s) == tells for one in asked)
    assert all(bool(one.tpot_slo_s) == (tells and not only_ttft) for one in asked)


@pytest.mark.parametrize("name", TRACES)
def test_workloads_are_in_order_and_as_many_per_second_as_they_say(name: str) -> None:
    sessions = list(itertools.islice(TRACES[name](128, 2), 400))
    starts = [session.start for session in sessions]
    assert starts == sorted(starts) and starts[0] >= 0.0
    found = [turn for session in sessions for turn in session.turns]
    assert len(found) / starts[-1] == pytest.approx(1.0, rel=0.35)
    assert len({request.name for request in found}) == len(found)
    for request in found:
        assert len(request.prompt_keys) == request.tokens // 128
        assert all(item.end <= request.tokens for item in request.items)
    shared = {request.keys[0] for request in found}
    assert len(shared) < len(found), "some prompts begin alike"
    items = [item.mm_hash for request in found for item in request.items]
    assert (len(set(items)) == len(items)) == (name != "pictures"), "only an album's repeat"
