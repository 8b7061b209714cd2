"""A worker: its role, its configuration, its engine and the requests it has taken."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from fastapi import APIRouter

from protocol.encoder_cache import held_only
from protocol.errors import InvalidRequest, NotServing, Unavailable
from protocol.generate import not_served
from protocol.pooling import check_task
from protocol.refs import wants_remote_decode
from protocol.registry import StageRole
from protocol.request_record import RequestRecord
from protocol.sampling_checks import check_request
from protocol.types import EncodeOutput, EncodeRequest, GenerateRequest, RequestOutput, Role
from services.engine.config import Part
from services.frontend.render import Frontend
from services.http.bodies import Bodies
from services.http.lame_duck import LameDuck
from services.http.long_texts import LongTexts
from services.membership.registration import Changes
from services.membership.tasks import TaskLog
from services.worker.beam_steps import beam_steps, prompt_of_beams
from services.worker.config import WorkerConfig
from services.worker.engine_client import EngineClient
from services.worker.media_cache import MediaCache
from services.worker.metrics import WorkerMetrics

logger = logging.getLogger("worker")
_RETRY_AFTER_S = 1.0


@dataclass(frozen=True)
class RoleSpec:
    """What makes one role differ from another. `parts` of the model are loaded; transports are what
    is used if no flag says otherwise; `routers` build the role's own routes around a worker.
    `stages`: what it may serve by turns, the first one at the start; empty: its role alone."""

    name: Role | Literal["any"]  # of the role
    parts: tuple[Part, ...]
    ec_transport: str  # connector of embeddings
    kv_transport: str  # connector of KV blocks
    routers: tuple[Callable[[Worker], APIRouter], ...]
    stages: tuple[StageRole, ...] = ()


@dataclass
class Worker:
    """Handed to every route; owns nothing global. It takes every call in any `stage`: a stage says
    what it is sent."""

    role: RoleSpec  # what it is, in full
    config: WorkerConfig  # as it was started with
    engine: EngineClient  # another process
    frontend: Frontend  # renders requests and reads tokens
    metrics: WorkerMetrics  # what /metrics shows
    # New at each start: a worker that has restarted is another instance.
    instance_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    draining: bool = False  # takes no more requests
    drained_by_master: bool = False  # may be taken back by a master
    in_flight: int = 0  # requests now, those that wait included
    stage: StageRole | None = None  # which of its role's stages it serves, None if it has none
    grpc_port: int = 0  # where RTP-LLM's gRPC listens, 0 for nowhere
    tasks: TaskLog = field(default_factory=TaskLog)  # what RTP-LLM's status shows
    changes: Changes = field(default_factory=Changes)  # what masters should know of at once
    bodies: Bodies = field(init=False)  # all that are being received, bounded together
    texts: LongTexts = field(default_factory=LongTexts)  # long ones that are asked about
    life: LameDuck = field(init=False)  # when it ends, and how
    media: MediaCache = field(init=False)  # bytes of pictures that it has had

    def __post_init__(self) -> None:
        config = self.config
        self.stage = next(iter(self.stages), None)
        self.life = LameDuck(config.drain_delay, config.shutdown_timeout)
        self.media = MediaCache(config.media_cache_bytes)
        self.bodies = Bodies(config.max_body_bytes, config.max_received_bytes)

    def drain(self, *, by_master: bool = False) -> None:
        """Take no more requests; those under way finish."""
        self.draining, self.drained_by_master = True, by_master
        self.changes.announce()

    def undrain(self) -> None:
        """End a drain that was asked for here. `InvalidRequest` if a master has asked for it, which
        would only ask again, or if the worker is about to stop."""
        if self.life.draining:
            raise InvalidRequest("this worker is about to stop")
        if self.drained_by_master:
            raise InvalidRequest("a master has drained this worker: its /drain takes it back")
        self.draining = False
        self.changes.announce()

    def resume(self) -> None:
        """Take requests again, if a master had the worker drained."""
        if self.drained_by_master:
            self.draining = self.drained_by_master = False
            self.changes.announce()

    @property
    def stages(self) -> list[StageRole]:
        """Those that it may serve; a text model has nothing to encode."""
        media = self.frontend.info.has_media
        return [stage for stage in self.role.stages if media or stage != "encode"]

    def serve(self, stage: StageRole) -> None:
        """A master moves the worker to another stage; what is under way goes on."""
        if stage in self.stages and stage != self.stage:
            logger.info("worker moved from %s to %s", self.stage, stage)
            self.stage = stage
            self.changes.announce()

    @property
    def serving(self) -> str:
        """The role, or the stage that it serves of several."""
        return self.stage or self.role.name

    @property
    def leaving(self) -> bool:
        """Whether new requests had better go elsewhere: it takes none, or soon will not."""
        return self.draining or self.life.draining

    @property
    def model(self) -> str:
        return self.frontend.config.names[0]

    def check_model(self, wanted: GenerateRequest) -> None:
        """`not_served` unless it names nothing, the model served here or an adapter of it."""
        if wanted.model not in self.frontend.served:
            raise not_served(wanted.model, wanted.adapter_revision)

    def check_room(self) -> None:
        """`Unavailable` if the worker is full, drains or has no engine."""
        if self.draining:
            raise self._no_more()
        self._check_open()

    def _no_more(self) -> NotServing:
        return NotServing(
            "this worker is draining or stopping and accepts no requests",
            retry_after_s=_RETRY_AFTER_S,
        )

    def _check_open(self) -> None:
        if outage := self.engine.outage:
            raise NotServing(outage, retry_after_s=_RETRY_AFTER_S)
        if self.in_flight >= self.config.max_num_queued:
            raise Unavailable(
                "the queue of this worker is full (--max-num-queued)", retry_after_s=_RETRY_AFTER_S
            )

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request in while it is here, its way in and its answer included."""
        self.check_room()
        with self.open():
            yield

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """As `admitted`, for requests that a draining worker may still have an answer to."""
        self._check_open()
        self.in_flight += 1
        self.metrics.set_in_flight(self.in_flight)
        try:
            yield
        finally:
            self.in_flight -= 1
            self.metrics.set_in_flight(self.in_flight)

    async def generate(
        self, request: GenerateRequest, record: RequestRecord
    ) -> AsyncGenerator[list[RequestOutput], None]:
        """Run a request here; see `EngineClient.generate`."""
        if "language" not in self.role.parts:
            raise InvalidRequest(f"a worker with the role {self.role.name} generates no tokens")
        check_request(request, self.frontend.info.vocab_size)
        check_task(request.pooling, self.frontend.info.pooler)
        handed = wants_remote_decode(request.kv_transfer_params)
        if handed:
            request = prompt_of_beams(request)
        with (
            self.tasks.task(request.request_id, len(request.token_ids)) as task,
            self.metrics.timed(request, hands_over=handed) as timeline,
        ):
            async with contextlib.aclosing(self._steps(request, record, handed)) as steps:
                try:
                    async for outputs in steps:
                        timeline.observe(outputs)
                        task.observe(outputs)
                        yield outputs
                except GeneratorExit:
                    # A caller that has every choice need not wait for the end.
                    if timeline.left:
                        self.metrics.abort()
                        raise

    def stop_choice(self, request_id: str, index: int) -> None:
        """A stop string has ended a choice of a request, with which the engine would go on."""
        self.metrics.stop_choice(request_id, index)
        self.engine.abort([request_id], index)

    def _steps(
        self, request: GenerateRequest, record: RequestRecord, handed: bool
    ) -> AsyncGenerator[list[RequestOutput], None]:
        if handed or not request.sampling.beam_width:
            return self.engine.generate(request, record)
        eos = self.frontend.info.eos_token_ids
        return beam_steps(lambda one: self.engine.generate(one, record), request, eos)

    async def encode(self, request: EncodeRequest, record: RequestRecord) -> list[EncodeOutput]:
        """Encode pictures here; see `EngineClient.encode`. A worker that drains hands out those it
        has, and is `Unavailable` for others."""
        if "vision" not in self.role.parts:
            raise InvalidRequest(f"a worker with the role {self.role.name} encodes no media")
        if self.draining:
            return await held_only(request, lambda held: self.engine.encode(held, record))
        start = time.monotonic()
        tokens = sum(item.length for item in request.items)
        with self.tasks.task(request.request_id, tokens):
            outputs = await self._encoded(request, record)
        self.metrics.observe_encode(time.monotonic() - start)
        return outputs

    async def _encoded(self, request: EncodeRequest, record: RequestRecord) -> list[EncodeOutput]:
        """What the engine does not have is encoded again from the bytes kept here."""
        self.media.keep(request.items)
        outputs = await self.engine.encode(request, record)
        if again := self.media.missing(request.items, outputs):
            wanted = msgspec.structs.replace(request, items=again)
            made = {output.mm_hash: output for output in await self.engine.encode(wanted, record)}
            outputs = [made.get(output.mm_hash, output) for output in outputs]
        self.metrics.set_media(self.media)
        return outputs
