"""The simulator: the same seed gives the same run, and its workers take the mock engine's time."""

import random

import pytest

from benchmarks.simulate.clock import Clock
from benchmarks.simulate.decode import DecodeJob, DecodeWorker
from benchmarks.simulate.encode import EncodeWorker
from benchmarks.simulate.metrics import Objectives, outcome
from benchmarks.simulate.prefill import PrefillJob, PrefillWorker
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import Picture, Prompt, TraceRequest
from benchmarks.simulate.records import Shape
from benchmarks.simulate.simulation import Simulation
from benchmarks.simulate.stage import Stage
from benchmarks.simulate.traces import TRACES
from protocol.types import EncodeOutput, GenerateRequest, RequestOutput, SamplingParams
from services.master.config import MasterConfig
from services.mock.engine import Engine
from services.mock.settings import EngineSettings
from services.mock.timing import Noise, Timing
from tests.support.virtual_fleet import VirtualFleet

TIMING = Timing(
    encode_base_ms=5.0, encode_patch_ms=0.01, prefill_base_ms=3.0, prefill_token_ms=0.1,
    prefill_cached_ms=0.002, decode_base_ms=10.0, decode_request_ms=0.5, decode_context_ms=0.003,
    kv_block_ms=0.2, ec_token_ms=0.01,
)  # fmt: skip
SMALL = Profile(
    "small", TIMING, block_size=16, prefill_blocks=512, decode_blocks=4096, step_tokens=256,
    max_running=64, message_s=0.0, jitter=0.0,
)  # fmt: skip


def nothing_lost(job: PrefillJob, item: Picture) -> None:
    raise AssertionError(f"{item} was thought to be here")


def requests(count: int, seed: int = 3) -> list[TraceRequest]:
    """Random prompts, of which many begin alike, close together."""
    rng, time, found = random.Random(seed), 0.0, []
    for number in range(count):
        prompt = Prompt(16)
        prompt.add(1 + rng.randrange(3), 16 * rng.randrange(12))
        prompt.add(100 + number, rng.randrange(1, 400))
        time += rng.expovariate(20.0)
        output = rng.randrange(2, 40)
        found.append(prompt.request(f"r{number}", time, 1000 + number, output, ""))
    return found


def tokens_of(request: TraceRequest) -> list[int]:
    """Token ids whose blocks are equal where the keys of the request's blocks are."""
    ids: list[int] = []
    for key in request.prompt_keys:
        ids += random.Random(key).choices(range(1 << 30), k=16)
    rest = request.tokens - len(ids)
    return ids + random.Random(request.name).choices(range(1 << 30), k=rest)


def in_mock_engines(trace: list[TraceRequest]) -> dict[str, tuple[float, float]]:
    """First and last token of each request: one prefill and one decode engine, handing over."""
    times: dict[str, list[float]] = {}
    sources: dict[str, GenerateRequest] = {}

    def settings(role: str, port: int) -> EngineSettings:
        return EngineSettings(
            role=role, instance_id=role, host="h", port=port,  # type: ignore[arg-type]
            num_blocks=512 if role == "prefill" else 4096, max_num_seqs=64,
            max_num_batched_tokens=256 if role == "prefill" else 1 << 20, lease_s=1e6,
        )  # fmt: skip

    prefill, decode = (
        Engine(settings(role, port), TIMING, Noise())
        for port, role in enumerate(("prefill", "decode"))
    )

    def told(engine: Engine, outputs: list[RequestOutput], encoded: list[EncodeOutput]) -> None:
        for output in outputs:
            times.setdefault(output.request_id, []).append(fleet.now)
            if engine is prefill:
                source = sources[output.request_id]
                source.kv_transfer_params = output.kv_transfer_params
                source.emitted = {0: list(output.token_ids)}
                fleet.add(decode, source)

    fleet = VirtualFleet([prefill, decode], told)
    for request in trace:
        fleet.run(until=request.arrival)
        sampling = SamplingParams(max_tokens=request.output, temperature=0.0)
        made = GenerateRequest(request.name, tokens_of(request), sampling)
        sources[request.name] = made
        asked = GenerateRequest(
            request.name, made.token_ids, sampling, kv_transfer_params={"do_remote_decode": True}
        )
        fleet.add(prefill, asked)
    fleet.run()
    return {name: (found[0], found[-1]) for name, found in times.items()}


def in_simulated_workers(trace: list[TraceRequest]) -> dict[str, tuple[float, float]]:
    clock = Clock()
    prefill = PrefillWorker("prefill", SMALL, clock, 0, nothing_lost)
    decode = DecodeWorker("decode", SMALL, clock, 0)
    first: dict[str, float] = {}
    last: dict[str, float] = {}

    def done(job: DecodeJob) -> None:
        last[job.request.name] = clock.now

    def prefilled(job: PrefillJob) -> None:
        first[job.request.name] = clock.now
        decode.add(DecodeJob(job.request, lambda _: prefill.release(job), done))

    for request in trace:
        clock.at(request.arrival, prefill.add, PrefillJob(request, prefilled))
    clock.run(1e6)
    return {name: (first[name], last[name]) for name in first}


def test_simulated_workers_take_the_time_of_the_mock_engine() -> None:
    """Chunked prefill, prefix reuse, hand-over, growing and shrinking batches."""
    trace = requests(60)
    expected, found = in_mock_engines(trace), in_simulated_workers(trace)
    assert found.keys() == expected.keys()
    for name, (first, last) in expected.items():
        assert found[name][0] == pytest.approx(first, abs=1e-6), name
        assert found[name][1] == pytest.approx(last, abs=1e-6), name


def alone_in_a_mock_engine(trace: list[TraceRequest]) -> dict[str, tuple[float, float]]:
    """First and last token of each request: one engine computes prompts and answers."""
    times: dict[str, list[float]] = {}
    settings = EngineSettings(
        role="prefill_decode", instance_id="pd", host="h", port=0, num_blocks=4096,
        max_num_seqs=64, max_num_batched_tokens=256, lease_s=1e6,
    )  # fmt: skip
    engine = Engine(settings, TIMING, Noise())

    def told(engine: Engine, outputs: list[RequestOutput], encoded: list[EncodeOutput]) -> None:
        for output in outputs:
            times.setdefault(output.request_id, []).append(fleet.now)

    fleet = VirtualFleet([engine], told)
    for request in trace:
        fleet.run(until=request.arrival)
        sampling = SamplingParams(max_tokens=request.output, temperature=0.0)
        fleet.add(engine, GenerateRequest(request.name, tokens_of(request), sampling))
    fleet.run()
    return {name: (found[0], found[-1]) for name, found in times.items()}


def alone_in_a_simulated_worker(trace: list[TraceRequest]) -> dict[str, tuple[float, float]]:
    clock = Clock()
    worker = DecodeWorker("decode", SMALL, clock, 0)
    first: dict[str, float] = {}
    last: dict[str, float] = {}

    def begun(job: DecodeJob) -> None:
        first[job.request.name] = clock.now

    def done(job: DecodeJob) -> None:
        last[job.request.name] = clock.now

    for request in trace:
        clock.at(request.arrival, worker.add, DecodeJob(request, begun, done, alone=True))
    clock.run(1e6)
    return {name: (first[name], last[name]) for name in first}


def test_a_decode_worker_that_prefills_takes_the_time_of_the_mock_engine() -> None:
    # The mock prices the last token of a prompt, if computed alone, as one of an answer. None is.
    trace = [request for request in requests(60, seed=4) if request.tokens % 16 != 1]
    expected, found = alone_in_a_mock_engine(trace), alone_in_a_simulated_worker(trace)
    assert found.keys() == expected.keys()
    for name, (first, last) in expected.items():
        assert found[name] == (pytest.approx(first, abs=1e-6), pytest.approx(last, abs=1e-6)), name


def test_a_prefill_worker_stops_before_a_picture_and_goes_on_when_it_comes() -> None:
    clock = Clock()
    worker = PrefillWorker("prefill", SMALL, clock, 0, nothing_lost)
    prompt = Prompt(16)
    prompt.add(1, 100)
    prompt.add_picture(7, 50)
    prompt.add(2, 10)
    request = prompt.request("r", 0.0, 3, 4, "")
    ended: list[float] = []
    job = PrefillJob(request, lambda job: ended.append(clock.now))
    job.coming.add(request.items[0].mm_hash)
    worker.add(job)
    clock.run(1.0)
    assert (job.computed, ended) == (100, [])
    worker.embedding(request.items[0].mm_hash, 50)
    clock.run(2.0)
    assert ended == [pytest.approx(1.0 + 0.003 + 60 * 0.0001)]
    again = PrefillJob(request, lambda job: ended.append(clock.now))
    worker.add(again)
    assert again.missing == {}


def test_an_encoder_encodes_a_picture_once_however_many_ask() -> None:
    clock = Clock()
    worker = EncodeWorker("encode", SMALL, clock, 0)
    ended: list[float] = []
    for _ in range(3):
        worker.encode(Picture("a", 0, 100), lambda: ended.append(clock.now))
    clock.run(1.0)
    worker.encode(Picture("a", 0, 100), lambda: ended.append(clock.now))
    assert ended == [pytest.approx(0.005 + 400 * 0.00001)] * 3 + [1.0]
    assert worker.queue.encoded == 1


def test_time_is_spread_over_the_windows_it_falls_into() -> None:
    clock = Clock()
    worker = Stage("w", SMALL, clock, 0)
    clock.at(4.0, worker.count, 2)
    clock.at(25.0, worker.count, -1)
    clock.at(26.0, worker.count, -1)
    clock.run(30.0)
    assert worker.held == pytest.approx([12.0, 20.0, 11.0])


def run(policy: str, seed: int) -> list[tuple[float, float, int]]:
    trace = TRACES["pictures"](60, 128, seed)
    profile = Profile("p", TIMING)
    simulation = Simulation(profile, Shape(2, 3, 3), MasterConfig(policy=policy, seed=1), seed)
    records = simulation.run(trace, 20.0)
    found = outcome(simulation, records, Objectives.of(trace, profile))
    assert 0.0 < found.kv_hits < 1.0 and 0.0 < found.ec_hits < 1.0
    assert all(record.last >= record.first > record.arrival for record in records)
    for worker in simulation.workers:
        assert worker.blocks.check_integrity([]) == [] and worker.blocks.usage == 0.0 \
            if worker.blocks.num_blocks else True  # fmt: skip
    assert len(simulation.master.ledger) <= 1
    return [(record.first, record.last, record.cached) for record in records]


@pytest.mark.parametrize("policy", ["cost", "rtp", "random"])
def test_the_same_seed_gives_the_same_run(policy: str) -> None:
    assert run(policy, 5) == run(policy, 5)
    assert run(policy, 5) != run(policy, 6)


@pytest.mark.parametrize("name", TRACES)
def test_traces_are_in_order_and_as_many_per_second_as_they_say(name: str) -> None:
    trace = TRACES[name](300, 128, 2)
    arrivals = [request.arrival for request in trace]
    assert len(trace) == 300 and arrivals == sorted(arrivals) and arrivals[0] >= 0.0
    assert 300 / arrivals[-1] == pytest.approx(1.0, rel=0.35)
    assert len({request.name for request in trace}) == 300
    for request in trace:
        assert len(request.prompt_keys) == request.tokens // 128
        assert all(item.end <= request.tokens for item in request.items)
    shared = {request.keys[0] for request in trace}
    assert len(shared) < 300, "some prompts begin alike"
