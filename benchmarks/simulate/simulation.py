"""One trace through one fleet under one policy: the real master, simulated workers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.simulate.clock import Clock
from benchmarks.simulate.decode import DecodeJob, DecodeWorker
from benchmarks.simulate.encode import EncodeWorker
from benchmarks.simulate.prefill import PrefillJob, PrefillWorker
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import Picture, TraceRequest
from benchmarks.simulate.records import Record, Shape
from benchmarks.simulate.stage import Stage
from protocol.errors import TriptychError
from protocol.kv_events import CacheEvent, EventBatch, EventSource
from protocol.registry import (
    Finished,
    Heartbeat,
    InstanceInfo,
    InstanceRole,
    MediaNeed,
    Placement,
    ScheduleRequest,
    Target,
)
from services.admission.ticket import Ticket
from services.master.config import MasterConfig
from services.master.master import Master
from services.master.placement.tickets import PlacementTicket

_TICK_S = 0.1  # as `services.master.api.service`
_PUMP_S = 0.005
_DRAIN_S = 120.0
_MOST_TOKENS = 1024  # what clients allow an answer; how long it will be nobody knows
_SOURCE = EventSource("inproc://simulated")


@dataclass
class Simulation:
    """`run` once. Deterministic: the same arguments give the same records."""

    profile: Profile
    shape: Shape
    config: MasterConfig
    seed: int = 0
    records: list[Record] = field(default_factory=list)
    encoder_misses: int = 0
    _open: int = 0
    _pumping: bool = False

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.master = Master(self.config, random.Random(self.seed))
        rng = random.Random(self.seed + 1)
        profile, clock = self.profile, self.clock
        self.encoders = {
            f"encode-{i}": EncodeWorker(f"encode-{i}", profile, clock, rng.getrandbits(32))
            for i in range(self.shape.encode)
        }
        self.prefills = {
            f"prefill-{i}": PrefillWorker(
                f"prefill-{i}", profile, clock, rng.getrandbits(32), self._lost
            )
            for i in range(self.shape.prefill)
        }
        self.decodes = {
            f"decode-{i}": DecodeWorker(f"decode-{i}", profile, clock, rng.getrandbits(32))
            for i in range(self.shape.decode)
        }
        for worker in self.workers:
            self._join(worker, rng.random())

    @property
    def workers(self) -> list[Stage]:
        return [*self.encoders.values(), *self.prefills.values(), *self.decodes.values()]

    def _join(self, worker: Stage, phase: float) -> None:
        role: InstanceRole = worker.name.split("-")[0]  # type: ignore[assignment]
        info = InstanceInfo(
            worker.name, role, f"http://{worker.name}:8000", "m",
            block_size=self.profile.block_size, max_running=self.profile.max_running,
            kv_bytes_per_token=self.profile.kv_bytes_per_token, events=[_SOURCE],
            load=worker.load(),
        )  # fmt: skip
        self.master.register(info, 0.0)

        def publish(event: CacheEvent) -> None:
            batch = EventBatch(0.0, [event])
            self.clock.after(self.profile.event_s, self.master.apply, info, batch)

        worker.publish = publish
        self.clock.after(phase * self.profile.heartbeat_s, self._read_load, worker)

    def _read_load(self, worker: Stage) -> None:
        beat = Heartbeat(worker.name, load=worker.load())
        self.clock.after(self.profile.message_s, self._heartbeat, beat)
        self.clock.after(self.profile.heartbeat_s, self._read_load, worker)

    def _heartbeat(self, beat: Heartbeat) -> None:
        self.master.heartbeat(beat, self.clock.now)
        self._pump_soon()

    def _tick(self) -> None:
        self.master.expire(self.clock.now)
        self.clock.after(_TICK_S, self._tick)

    def _pump_soon(self) -> None:
        if self.master.waiting and not self._pumping:
            self._pumping = True
            self.clock.after(_PUMP_S, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        self.master.pump(self.clock.now)

    def run(self, trace: Sequence[TraceRequest], pace: float = 1.0) -> list[Record]:
        """All requests of `trace`, `pace` times as fast as it says. What is not over long after the
        last arrival stays unfinished."""
        self.records = [Record(request, request.arrival / pace) for request in trace]
        self._open = len(self.records)
        for record in self.records:
            self.clock.at(record.arrival + self.profile.message_s, self._schedule, record)
        self.clock.at(0.0, self._tick)
        end = max((r.arrival for r in self.records), default=0.0)
        until = end
        while self._open and until <= end + _DRAIN_S:
            until += 1.0
            self.clock.run(until)
        return self.records

    def _schedule(self, record: Record) -> None:
        request = record.request
        wanted = ScheduleRequest(
            request.name, request.tokens, block_keys=request.prompt_short,
            block_size=request.block_size, max_tokens=_MOST_TOKENS, session=request.session,
            items=[
                MediaNeed(i.mm_hash, i.tokens, i.offset, i.tokens * self.profile.row_bytes)
                for i in request.items
            ],
        )  # fmt: skip
        try:
            placed = self.master.schedule(wanted, self.clock.now)
        except TriptychError as error:
            self._refused(record, error)
            return
        if isinstance(placed, Ticket):
            placed.wake = lambda: self._woken(record, placed)
            if placed.outcome is not None:
                self._woken(record, placed)
        else:
            self.clock.after(self.profile.message_s, self._start, record, placed)

    def _refused(self, record: Record, error: TriptychError) -> None:
        record.refused = error.code
        self._open -= 1

    def _woken(self, record: Record, ticket: PlacementTicket) -> None:
        if isinstance(ticket.outcome, Placement):
            self.clock.after(self.profile.message_s, self._start, record, ticket.outcome)
        elif ticket.outcome is not None and not record.refused:
            self._refused(record, ticket.outcome)

    def _start(self, record: Record, placement: Placement) -> None:
        """The proxy's part: every stage is asked at once."""
        decode = self.decodes[placement.decode.instance_id]
        if placement.prefill is None:
            self._alone(record, decode)
            return
        prefill = self.prefills[placement.prefill.instance_id]
        job = PrefillJob(record.request, lambda job: self._prefilled(record, job, prefill, decode))
        charged = {e.mm_hash for e in placement.encoders if e.state == "encode"}
        for item, source in zip(record.request.items, placement.encoders, strict=True):
            if source.state == "prefix" or source.target == placement.prefill:
                continue
            job.coming.add(item.mm_hash)
            self._encode(record, item, source.target, prefill, report=item.mm_hash in charged)
            charged.discard(item.mm_hash)
        decode.announced += 1
        self.clock.after(self.profile.message_s, prefill.add, job)

    def _alone(self, record: Record, decode: DecodeWorker) -> None:
        """The decode worker has nearly the whole prompt, and computes the rest."""

        def first(job: DecodeJob) -> None:
            record.first = self.clock.now + self.profile.message_s
            record.cached = job.cached

        job = DecodeJob(record.request, first, lambda _: self._done(record), alone=True)
        self.clock.after(self.profile.message_s, decode.add, job)

    def _encode(
        self, record: Record, item: Picture, target: Target | None, prefill: PrefillWorker,
        *, report: bool,
    ) -> None:  # fmt: skip
        assert target is not None, "every simulated fleet with pictures has encoders"
        encoder, delay = self.encoders[target.instance_id], self.profile.message_s

        def encoded() -> None:
            seconds = delay + self.profile.timing.embedding_s(item.tokens)
            self.clock.after(seconds, prefill.embedding, item.mm_hash, item.tokens)
            if report:
                name = record.request.name
                self._report(Finished(name, "encode", [item.mm_hash]))

        self.clock.after(delay, encoder.encode, item, encoded)

    def _lost(self, job: PrefillJob, item: Picture) -> None:
        """What a prefill worker was thought to hold is made again, where its hash points."""
        self.encoder_misses += 1
        job.coming.add(item.mm_hash)
        encoder = list(self.encoders.values())[int(item.mm_hash, 16) % len(self.encoders)]
        prefill = next(w for w in self.prefills.values() if job in w.running or job in w.waiting)
        seconds = self.profile.message_s + self.profile.timing.embedding_s(item.tokens)
        self.clock.after(
            2 * self.profile.message_s, encoder.encode, item,
            lambda: self.clock.after(seconds, prefill.embedding, item.mm_hash, item.tokens),
        )  # fmt: skip

    def _prefilled(
        self, record: Record, job: PrefillJob, prefill: PrefillWorker, decode: DecodeWorker
    ) -> None:
        delay = self.profile.message_s
        record.first = self.clock.now + delay
        record.cached = job.cached
        self._report(Finished(record.request.name, "prefill"))

        def copied(_: DecodeJob) -> None:
            self.clock.after(delay, prefill.release, job)

        def offered() -> None:
            decode.announced -= 1
            decode.add(DecodeJob(record.request, copied, lambda _: self._done(record)))

        self.clock.after(delay, offered)

    def _done(self, record: Record) -> None:
        record.last = self.clock.now + self.profile.message_s
        self._open -= 1
        self._report(Finished(record.request.name))

    def _report(self, report: Finished) -> None:
        self.clock.after(2 * self.profile.message_s, self._finished, report)

    def _finished(self, report: Finished) -> None:
        self.master.finished(report, self.clock.now)
        self._pump_soon()
