"""A simulated worker: a mock engine on virtual time, whose requests are lengths and block keys."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import astuple

from benchmarks.simulate.clock import Clock
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import Picture, TraceRequest, short_keys
from benchmarks.simulate.records import Shape
from protocol.keys import BlockKeyChain
from protocol.kv_events import BlockStored
from protocol.placement import MediaNeed, ScheduleRequest
from protocol.registry import InstanceRole, Load, Rates, StageRole
from protocol.types import EncodeItem, EncodeRequest, GenerateRequest, MMItem, SamplingParams
from services.engine.reports import load_of
from services.membership.events import MEDIUM, CacheLog
from services.mock.actions import Step
from services.mock.engine import Engine
from services.mock.kv_offers import kv_ref
from services.mock.runner import TimedAdmission
from services.mock.settings import STAGES, EngineSettings, WorkerRole
from services.mock.timing import Noise

WINDOW_S = 1.0
_PORT = 8000
_FOREVER_S = 1e9
_UNBOUNDED = 1 << 40


class _Numbers:
    """Which tokens they are makes no difference."""

    def tokens(self, digest: int, seed: int, choice: int, start: int, count: int) -> list[int]:
        return [0] * count


class _KnownKeys(BlockKeyChain):
    """A trace says how blocks are named."""

    def __init__(self, request: TraceRequest) -> None:
        super().__init__(b"", request.block_size)
        self.keys = request.keys

    def extend(self, token_ids: Sequence[int]) -> list[bytes]:
        return self.keys


class _ShortLog(CacheLog):
    """Names blocks and says nothing of what is in them: this master goes by names."""

    def blocks_stored(
        self,
        keys: Sequence[bytes],
        numbers: Sequence[int],
        tokens: Sequence[int],
        source: GenerateRequest,
        lora_name: str | None = None,
    ) -> None:
        self.flush()
        self.kv.append(BlockStored([*short_keys([keys[i] for i in numbers])], medium=MEDIUM))


class Worker:
    """`held` is the time that requests spent queued or running here, `worked` the time of
    computing, both in seconds by window of `WINDOW_S`."""

    def __init__(
        self,
        name: str,
        profile: Profile,
        clock: Clock,
        seed: int,
        requests: Mapping[str, TraceRequest],
    ) -> None:
        """The part of `name` before the dash is its role. `requests` by name."""
        self.name = name
        self.stage: StageRole | None = None  # which role it serves, of one of the role any
        self.clock = clock
        self.engine = Engine(
            _settings(name, profile), profile.timing, Noise(profile.jitter, seed), clock.time,
            words=_Numbers(), admission=TimedAdmission(lambda source: 0),
            make_keys=lambda source: _KnownKeys(requests[source.request_id]),
            log=_ShortLog(profile.block_size),
        )  # fmt: skip
        self._rates = _misjudged(self.engine.meter.rates(), profile.rate_error, seed)
        self.held: list[float] = []
        self.worked: list[float] = []
        self._count = 0
        self._since = 0.0

    @property
    def role(self) -> InstanceRole:
        """As it registers."""
        role: InstanceRole = self.stage or self.engine.settings.role  # type: ignore[assignment]
        return role

    @property
    def roles(self) -> list[StageRole]:
        """Those that it may have, [] if it has one alone."""
        return list(STAGES) if self.stage is not None else []

    def serve(self, stage: StageRole) -> None:
        """A master moves it."""
        self.stage = stage

    def load(self) -> Load:
        """As a worker reports it."""
        return msgspec.structs.replace(load_of(self.engine), rates=self._rates)

    def endpoint(self, request: TraceRequest) -> dict[str, object]:
        """Where to ask for KV of a request that is still computed here."""
        return kv_ref(self.engine.settings).to_params() | {"remote_request_id": request.name}

    def stepped(self, step: Step) -> None:
        """Take note of what a step of the engine has done."""
        for start, end in step.worked:
            _spread(self.worked, start, end, 1)

    def count(self, change: int) -> None:
        """So many requests more are queued or running here."""
        if self._count:
            _spread(self.held, self._since, self.clock.now, self._count)
        self._since = self.clock.now
        self._count += change


def _misjudged(rates: Rates, error: float, seed: int) -> Rates:
    """Each of them wrong by a share of its own, `error` at most."""
    rng = random.Random(seed)
    return Rates(*(rate * (1.0 + rng.uniform(-error, error)) for rate in astuple(rates)))


def _settings(name: str, profile: Profile) -> EngineSettings:
    role: WorkerRole = name.split("-")[0]  # type: ignore[assignment]
    encodes = role in ("encode", "any")
    return EngineSettings(
        role=role,
        instance_id=name,
        host=name,
        port=_PORT,
        block_size=profile.block_size,
        num_blocks=profile.decode_blocks if role in ("decode", "any") else profile.prefill_blocks,
        max_model_len=_UNBOUNDED,
        max_num_seqs=profile.max_running,
        max_num_batched_tokens=profile.step_tokens,
        max_prefill_beside_decode=profile.max_prefill_beside_decode,
        steps_at_once=_UNBOUNDED,
        max_encoder_patches=profile.max_patches,
        ec_cache_bytes=profile.encoder_bytes if encodes else profile.prefill_media_bytes,
        row_bytes=profile.row_bytes,
        kv_bytes_per_token=profile.kv_bytes_per_token,
        lease_s=_FOREVER_S,
        remote_embeddings=True,
    )


def generate_request(request: TraceRequest, **more: object) -> GenerateRequest:
    """A request of a trace as engines see it."""
    sampling = SamplingParams(max_tokens=request.output, temperature=0.0, ignore_eos=True)
    items = [MMItem(i.mm_hash, "image", i.offset, i.tokens) for i in request.items]
    return GenerateRequest(request.name, [0] * request.tokens, sampling, items, **more)  # type: ignore[arg-type]


def encode_request(name: str, item: Picture) -> EncodeRequest:
    return EncodeRequest(name, [EncodeItem(item.mm_hash, "image", item.tokens, data=b"x")])


def _spread(windows: list[float], start: float, end: float, weight: float) -> None:
    """Add `weight` times the time from `start` to `end` to the windows it falls into."""
    last = int(end / WINDOW_S)
    while len(windows) <= last:
        windows.append(0.0)
    first = int(start / WINDOW_S)
    for window in range(first, last + 1):
        inside = min(end, (window + 1) * WINDOW_S) - max(start, window * WINDOW_S)
        windows[window] += weight * inside


def schedule_request(request: TraceRequest, row_bytes: int, most_tokens: int) -> ScheduleRequest:
    """What a proxy asks the master; `most_tokens`: what a client allows an answer."""
    return ScheduleRequest(
        request.name, request.tokens, block_keys=request.prompt_short,
        block_size=request.block_size, max_tokens=most_tokens, session=request.session,
        items=[
            MediaNeed(i.mm_hash, i.tokens, i.offset, i.tokens * row_bytes) for i in request.items
        ],
    )  # fmt: skip


@dataclass(frozen=True)
class WorkersByRole:
    """By name; the same ones for each role where all may serve any."""

    encoders: dict[str, Worker]
    prefills: dict[str, Worker]
    decodes: dict[str, Worker]

    @staticmethod
    def of(
        profile: Profile, shape: Shape, clock: Clock, rng: random.Random,
        requests: dict[str, TraceRequest], elastic: bool,
    ) -> WorkersByRole:  # fmt: skip
        """`requests`: of the run, by name. `elastic`: all are any, and begin as `shape` says."""

        def workers(role: str, count: int) -> dict[str, Worker]:
            names = [f"{role}-{i}" for i in range(count)]
            return {
                name: Worker(name, profile.of(i), clock, rng.getrandbits(32), requests)
                for i, name in enumerate(names)
            }

        if not elastic:
            return WorkersByRole(
                workers("encode", shape.encode),
                workers("prefill", shape.prefill),
                workers("decode", shape.decode),
            )
        everyone = workers("any", shape.total)
        for worker, stage in zip(everyone.values(), shape.stages(), strict=True):
            worker.serve(stage)
        return WorkersByRole(everyone, everyone, everyone)
