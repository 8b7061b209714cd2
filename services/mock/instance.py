"""One mock worker: its engine, its name, its faults and the requests it has taken."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from protocol.encoder_cache import held_only
from protocol.errors import (
    InvalidRequest,
    ModelNotFound,
    NotServing,
    RequestAborted,
    TriptychError,
    Unavailable,
)
from protocol.refs import wants_remote_decode
from protocol.registry import InstanceInfo, InstanceRole, StageRole
from protocol.types import EncodeOutput, EncodeRequest, GenerateRequest, RequestOutput
from services.engine.reports import awaited_of, load_of, success
from services.http.lame_duck import LameDuck
from services.membership.tasks import TaskLog
from services.mock.config import MockConfig
from services.mock.driver import Driver
from services.mock.engine import Engine
from services.mock.faults import Fault, Faults, parse_faults
from services.mock.peers import Peers
from services.mock.publisher import Publisher
from services.mock.settings import STAGES, EngineSettings
from services.mock.timing import Noise

_RETRY_AFTER_S = 1.0
_ANSWERED_S = 0.01  # until the answer to the request for a fault is on its way


@dataclass
class Instance:
    """Handed to every route; owns nothing global."""

    config: MockConfig  # of the whole process
    settings: EngineSettings  # of this worker
    engine: Engine  # computes nothing, in time
    driver: Driver  # runs the engine on the event loop
    faults: Faults  # rules, and what was drawn of them
    publisher: Publisher | None = None  # of cache events, None for none
    draining: bool = False  # takes no more requests
    drained_by_master: bool = False  # may be taken back by a master
    life: LameDuck = field(default_factory=LameDuck)  # of the whole process
    stage: StageRole | None = None  # which role it serves, of a worker of the role any
    in_flight: int = 0  # requests now, those of the queue included
    tasks: TaskLog = field(default_factory=TaskLog)  # what RTP-LLM's status shows
    finished: Counter[str] = field(default_factory=Counter)  # choices by finish reason
    errors: Counter[str] = field(default_factory=Counter)  # answers by error code
    started: float = field(default_factory=time.time)  # seconds since the epoch
    _calm: asyncio.TimerHandle | None = None

    @staticmethod
    def create(
        config: MockConfig,
        shared: EngineSettings,
        port: int,
        number: int,
        peers: Peers,
        publisher: Publisher | None,
        life: LameDuck | None = None,
    ) -> Instance:
        """The worker number `number` of this process."""
        settings = replace(
            shared, instance_id=uuid.uuid4().hex, generation=uuid.uuid4().hex[:16], port=port
        )
        # A seed for each: workers that draw alike would be slow, and fail, at the same time.
        noise = Noise(config.jitter, config.seed + number)
        engine = Engine(settings, config.timing(), noise, time.monotonic)
        faults = Faults(parse_faults(config.faults or "[]"), config.seed + number)
        driver = Driver(engine, peers, publisher)
        return Instance(
            config, settings, engine, driver, faults, publisher, life=life or LameDuck(),
            stage=STAGES[0] if settings.role == "any" else None,
        )  # fmt: skip

    @property
    def leaving(self) -> bool:
        """Whether new requests had better go elsewhere: it takes none, or soon will not."""
        return self.draining or self.life.draining

    def undrain(self) -> None:
        """As of `services.worker`."""
        if self.life.draining:
            raise InvalidRequest("this worker is about to stop")
        if self.drained_by_master:
            raise InvalidRequest("a master has drained this worker: its /drain takes it back")
        self.draining = False

    def serve(self, stage: StageRole) -> None:
        """As of `services.worker`."""
        if self.stage is not None:
            self.stage = stage

    @property
    def serving(self) -> InstanceRole:
        """The role, or the one that it serves of several."""
        role: InstanceRole = self.stage or self.settings.role  # type: ignore[assignment]
        return role

    @property
    def kept(self) -> bool:
        """Whether requests are under way, or others have yet to fetch what was made for them."""
        return self.in_flight > 0 or awaited_of(self.engine) > 0

    @property
    def url(self) -> str:
        return f"http://{self.settings.host}:{self.settings.port}"

    def check_model(self, name: str | None) -> None:
        """`ModelNotFound` unless `name` is empty or the model served here."""
        names = {self.config.model, *self.config.served_model_name.replace(" ", "").split(",")}
        if name and name not in names:
            raise ModelNotFound(f"model: this worker does not serve '{name}'", param="model")

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request in while it is here; `Unavailable` if the worker is full or drains."""
        if self.draining:
            raise self._no_more()
        with self._open():
            yield

    def _no_more(self) -> NotServing:
        return NotServing(
            "this worker is draining or stopping and accepts no requests",
            retry_after_s=_RETRY_AFTER_S,
        )

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        if self.in_flight >= self.config.max_num_queued:
            raise Unavailable(
                "the queue of this worker is full (--max-num-queued)", retry_after_s=_RETRY_AFTER_S
            )
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    async def generate(
        self, request: GenerateRequest, local: Collection[str] = (), *, whole: bool = False
    ) -> AsyncGenerator[list[RequestOutput], None]:
        """Run a request here; see `Driver.generate`."""
        handed = wants_remote_decode(request.kv_transfer_params)
        with (
            self.admitted(),
            self.tasks.task(request.request_id, len(request.token_ids)) as task,
        ):
            steps = self.driver.generate(request, local, task.observe, whole=whole)
            async with contextlib.aclosing(steps):
                async for outputs in steps:
                    reasons = (success(output, hands_over=handed) for output in outputs)
                    self.finished.update(filter(None, reasons))
                    yield outputs

    async def encode(self, request: EncodeRequest) -> list[EncodeOutput]:
        """As of `services.worker`: one that drains hands out what it has."""
        with self._open():
            if self.draining:
                return await held_only(request, self.driver.encode)
            tokens = sum(item.length for item in request.items)
            with self.tasks.task(request.request_id, tokens):
                return await self.driver.encode(request)

    def observe(self, error: TriptychError) -> None:
        """Count an error that is about to be answered."""
        self.errors["aborted" if isinstance(error, RequestAborted) else error.code] += 1

    def info(self) -> InstanceInfo:
        """For the master."""
        settings = self.settings
        several = self.stage is not None
        growing = settings.generates and self.config.growing_kv and settings.role != "pdfusion"
        return InstanceInfo(
            instance_id=settings.instance_id,
            role=self.serving,
            url=self.url,
            model=self.config.name,
            generation=settings.generation,
            revision=settings.revision,
            tokenizer=settings.tokenizer,
            dialect="openai" if self.config.dialect == "openai" else "tokens",
            block_size=settings.block_size,
            max_running=settings.max_num_seqs,
            kv_bytes_per_token=settings.kv_bytes_per_token if settings.generates else 0,
            kv_endpoint=self.engine.kv.endpoint() if growing else None,
            ec_endpoint=self.engine.ec.endpoint() if settings.role in ("encode", "any") else None,
            ec_compatibility=settings.ec_compatibility,
            events=self.publisher.sources if self.publisher is not None else [],
            encodes=several,
            roles=list(STAGES) if several else [],
            load=load_of(self.engine),
        )

    def server_info(self) -> dict[str, Any]:
        """What a proxy or master needs to know; the keys are the real workers'."""
        info = self.info()
        return {
            "instance_id": info.instance_id,
            "role": info.role,
            "dialect": info.dialect,
            "model": info.model,
            "revision": info.revision,
            "tokenizer": info.tokenizer,
            "parameter_bytes": {},
            "num_blocks": self.settings.num_blocks if self.settings.generates else 0,
            "block_size": info.block_size,
            "max_model_len": self.settings.max_model_len,
            "max_num_seqs": info.max_running,
            "kv_transfer_params": info.kv_endpoint,
            "ec_transfer_params": info.ec_endpoint,
            "ec_compatibility": info.ec_compatibility,
        }

    def begin(self, faults: Sequence[Fault], refuse: Callable[[float], None]) -> None:
        """Rules that concern the worker as a whole take effect; `refuse` closes its port for some
        seconds, 0 for good."""
        loop = asyncio.get_running_loop()
        for fault in faults:
            if fault.kind == "refuse":
                loop.call_later(_ANSWERED_S, refuse, fault.duration_s)
            elif fault.kind == "slow":
                self.calm()
                self.engine.noise.slow = fault.factor
                if fault.duration_s:
                    self._calm = loop.call_later(fault.duration_s, self.calm)

    def calm(self) -> None:
        """Work takes its usual time again."""
        self.engine.noise.slow = 1.0
        if self._calm is not None:
            self._calm.cancel()
            self._calm = None
