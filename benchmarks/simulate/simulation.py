"""One trace through one fleet under one policy: the real master, simulated workers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.simulate.arrivals import Arrivals
from benchmarks.simulate.clock import Clock
from benchmarks.simulate.fleet import Fleet
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import Picture, Session, TraceRequest
from benchmarks.simulate.records import Objectives, Record, Shape, Span
from benchmarks.simulate.run_length import RunLength
from benchmarks.simulate.virtual_master import VirtualMaster
from benchmarks.simulate.worker import (
    Worker,
    WorkersByRole,
    encode_request,
    generate_request,
    schedule_request,
)
from protocol.errors import TriptychError
from protocol.placement import Finished, Placement
from protocol.types import EncodeOutput, GenerateRequest, RequestOutput
from services.admission.ticket import Ticket
from services.master.config import MasterConfig
from services.master.placement.waiting import PlacementTicket
from services.mock.actions import Step
from services.mock.engine import Engine

MOST_TOKENS = 1024  # tokens that clients allow an answer; the master is not told its length


@dataclass
class Simulation:
    """`run` once. Deterministic: the same arguments give the same records."""

    profile: Profile  # speed, caches and delays of the workers
    shape: Shape  # how many of each role
    config: MasterConfig  # the master's, with its policy
    aims: Objectives  # of requests
    seed: int = 0  # of the master's and the workers' chance
    tells: bool = False  # whether the master is told a request's objectives
    only_ttft: bool = False  # that for the first token alone
    elastic: bool = False  # whether all workers are of the role any; `shape` is how they begin
    records: list[Record] = field(default_factory=list)  # of every request that has arrived
    # From when to when requests arrived that count, in virtual seconds.
    measured: tuple[float, float] = (0.0, 0.0)
    encoder_misses: int = 0  # pictures that were thought to be at a worker and were not

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.service = VirtualMaster(self.profile, self.config, self.clock, self.seed)
        rng = random.Random(self.seed + 1)
        profile, clock = self.profile, self.clock
        self._requests: dict[str, TraceRequest] = {}
        self._by_name: dict[str, Record] = {}
        self._decoders: dict[str, Worker] = {}
        self._prefilling: dict[str, Worker] = {}
        self._encoding: dict[str, Record | None] = {}
        self._wants: dict[tuple[Engine, str], tuple[TraceRequest, Picture]] = {}
        self._asked = 0
        self.fleet = Fleet(
            clock, self._put_out, message_s=profile.message_s, on_step=self._stepped,
            on_missing=self._missing,
        )  # fmt: skip

        workers = WorkersByRole.of(profile, self.shape, clock, rng, self._requests, self.elastic)
        self.encoders, self.prefills = workers.encoders, workers.prefills
        self.decodes = workers.decodes
        self._names = {worker.name: worker for worker in self.workers}
        for worker in self.workers:
            self.fleet.join(worker.engine)
            self.service.join(worker, rng.random())

    @property
    def workers(self) -> list[Worker]:
        return list({**self.encoders, **self.prefills, **self.decodes}.values())

    def run(self, sessions: Iterable[Session], pace: float, span: Span) -> list[Record]:
        """Sessions at `pace` requests/s for a while; the records of those that were measured."""
        self.arrivals = Arrivals(self.clock, sessions, pace, self._arrive)
        self.arrivals.begin()
        self.clock.at(0.0, self.service.tick)
        length = RunLength(self.clock, self.records, span)
        end = length.run()
        self.measured = (span.warm_s, end)
        return length.measured(end)

    def _arrive(self, request: TraceRequest) -> None:
        record = Record(request, self.clock.now, self.aims.of(request))
        self.records.append(record)
        self._requests[request.name] = request
        self._by_name[request.name] = record
        self.clock.after(self.profile.message_s, self._schedule, record)

    def _schedule(self, record: Record) -> None:
        request = record.request
        wanted = schedule_request(request, self.profile.row_bytes, MOST_TOKENS)
        if self.tells:
            wanted.ttft_slo_s, tpot_slo_s = record.aims
            wanted.tpot_slo_s = 0.0 if self.only_ttft else tpot_slo_s
        try:
            placed = self.service.master.schedule(wanted, self.clock.now)
        except TriptychError as error:
            self._refused(record, error)
            return
        if isinstance(placed, Ticket):
            placed.when_ended(lambda: self._woken(record, placed))
        else:
            self.clock.after(self.profile.message_s, self._start, record, placed)

    def _refused(self, record: Record, error: TriptychError) -> None:
        if not record.over:
            record.refused = error.code
            self.arrivals.ended(record.request.name)

    def _woken(self, record: Record, ticket: PlacementTicket) -> None:
        if isinstance(ticket.outcome, Placement):
            self.clock.after(self.profile.message_s, self._start, record, ticket.outcome)
        elif ticket.outcome is not None:
            self._refused(record, ticket.outcome)

    def _start(self, record: Record, placement: Placement) -> None:
        """The proxy's part: every stage is asked at once. Decode asks for KV ahead."""
        decode, request = self.decodes[placement.decode.instance_id], record.request
        if placement.prefill is None:
            self._add(decode, record, generate_request(request))
            self.clock.after(self.profile.message_s, decode.count, 1)
            return
        prefill = self.prefills[placement.prefill.instance_id]
        # One that is preempted while it decodes computes its prompt there, pictures included.
        self._wants.update({(decode.engine, i.mm_hash): (request, i) for i in request.items})
        params: dict[str, Any] = {}
        charged = {e.mm_hash for e in placement.encoders if e.state == "encode"}
        for item, source in zip(request.items, placement.encoders, strict=True):
            self._wants[prefill.engine, item.mm_hash] = request, item
            if source.state != "prefix" and source.target != placement.prefill:
                assert source.target or self.elastic, "every fleet with pictures has encoders"
                encoder = self.encoders[source.target.instance_id] if source.target else prefill
                params[item.mm_hash] = encoder.engine.ec.endpoint()
                self._encode(encoder, item, record if item.mm_hash in charged else None)
                charged.discard(item.mm_hash)
        over, ahead = {"do_remote_decode": True}, prefill.endpoint(request)
        self._decoders[request.name], self._prefilling[request.name] = decode, prefill
        wanted = generate_request(request, kv_transfer_params=over, ec_transfer_params=params)
        self._add(prefill, record, wanted)
        self.clock.after(self.profile.message_s, prefill.count, 1)
        self._add(decode, record, generate_request(request, kv_transfer_params=ahead))

    def _add(self, worker: Worker, record: Record, source: GenerateRequest) -> None:
        def add() -> None:
            try:
                self.fleet.add(worker.engine, source)
            except TriptychError as error:
                self._refused(record, error)

        self.clock.after(self.profile.message_s, add)

    def _encode(self, encoder: Worker, item: Picture, record: Record | None) -> None:
        """`record` is charged with it."""
        self._asked += 1
        name = str(self._asked)
        self._encoding[name] = record

        def add() -> None:
            encoder.count(1)
            self.fleet.add_encode(encoder.engine, encode_request(name, item))

        self.clock.after(self.profile.message_s, add)

    def _missing(self, engine: Engine, mm_hash: str) -> None:
        """What a prefill worker was thought to hold is made again, where its hash points, unless
        its prefix cache has what became of it."""
        request, item = self._wants[engine, mm_hash]
        known = len(engine.blocks.match(request.prompt_keys)) * self.profile.block_size
        if item.end > known:
            self.encoder_misses += 1
            encoders = [one for one in self.encoders.values() if one.role == "encode"]
            encoders = encoders or [self._names[engine.settings.instance_id]]
            self._encode(encoders[int(mm_hash, 16) % len(encoders)], item, None)

    def _put_out(
        self, engine: Engine, outputs: list[RequestOutput], encoded: list[EncodeOutput]
    ) -> None:
        worker = self._names[engine.settings.instance_id]
        for item in encoded:
            worker.count(-1)
            charged = self._encoding.pop(item.request_id)
            if charged is not None:
                self.service.report(Finished(charged.request.name, "encode", [item.mm_hash]))
        for output in outputs:
            record = self._by_name[output.request_id]
            if record.first == math.inf and output.token_ids:
                record.first = self.clock.now + self.profile.message_s
                record.cached = output.cached_tokens or 0
            if output.finish_reason is not None:
                worker.count(-1)
                self._ended(worker, record)

    def _ended(self, worker: Worker, record: Record) -> None:
        name = record.request.name
        if self._prefilling.get(name) is worker:
            del self._prefilling[name]
            self.service.report(Finished(name, "prefill"))
            self.clock.after(self.profile.message_s, self._decoders.pop(name).count, 1)
            return
        self.service.report(Finished(name))
        if not record.over:
            record.last = self.clock.now + self.profile.message_s
            self.arrivals.ended(name)

    def _stepped(self, engine: Engine, step: Step) -> None:
        worker = self._names[engine.settings.instance_id]
        self.service.publish(worker, (*step.kv_events, *step.ec_events))
        worker.stepped(step)
