"""The real master on virtual time: what it is told arrives as late as over a network."""

from __future__ import annotations

import random
from collections.abc import Iterable

from benchmarks.simulate.clock import Clock
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.worker import Worker
from protocol.kv_events import CacheEvent, EventBatch, EventSource
from protocol.placement import Finished
from protocol.registry import Heartbeat, InstanceInfo
from services.master.config import MasterConfig
from services.master.master import Master

_TICK_S = 0.1  # as `services.master.api.service`
_PUMP_S = 0.005
_SOURCE = EventSource("inproc://simulated")


class VirtualMaster:
    """Stands in for `services.master.api.service`, whose clock and sockets are real."""

    def __init__(self, profile: Profile, config: MasterConfig, clock: Clock, seed: int) -> None:
        self.master = Master(config, random.Random(seed))
        self._profile = profile
        self._clock = clock
        self._infos: dict[str, InstanceInfo] = {}
        self._pumping = False

    def join(self, worker: Worker, phase: float) -> None:
        """Register a worker, whose heartbeats begin after a `phase` (0 to 1) of their interval."""
        info = InstanceInfo(
            worker.name, worker.role, f"http://{worker.name}:8000", "m",
            block_size=self._profile.block_size, max_running=self._profile.max_running,
            kv_bytes_per_token=self._profile.kv_bytes_per_token, events=[_SOURCE],
            load=worker.load(), encodes=bool(worker.roles), roles=worker.roles,
        )  # fmt: skip
        self.master.register(info, 0.0)
        self._infos[worker.name] = info
        self._clock.after(phase * self._profile.heartbeat_s, self._read_load, worker)

    def _read_load(self, worker: Worker) -> None:
        beat = Heartbeat(worker.name, load=worker.load(), role=worker.stage)
        self._clock.after(self._profile.message_s, self._heartbeat, worker, beat)
        self._clock.after(self._profile.heartbeat_s, self._read_load, worker)

    def _heartbeat(self, worker: Worker, beat: Heartbeat) -> None:
        answer = self.master.heartbeat(beat, self._clock.now)
        if answer.role is not None:
            self._clock.after(self._profile.message_s, worker.serve, answer.role)
        self._pump_soon()

    def publish(self, worker: Worker, events: Iterable[CacheEvent]) -> None:
        """What a worker's caches have gained and lost."""
        info = self._infos[worker.name]
        for event in events:
            batch = EventBatch(0.0, [event])
            self._clock.after(self._profile.event_s, self.master.apply, info, batch)

    def tick(self) -> None:
        """Let what is over lapse, from now on again and again."""
        self.master.expire(self._clock.now)
        self._clock.after(_TICK_S, self.tick)

    def _pump_soon(self) -> None:
        if self.master.waiting and not self._pumping:
            self._pumping = True
            self._clock.after(_PUMP_S, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        self.master.pump(self._clock.now)

    def report(self, report: Finished) -> None:
        """A worker has ended a stage: its proxy hears of it, and tells the master."""
        self._clock.after(2 * self._profile.message_s, self._finished, report)

    def _finished(self, report: Finished) -> None:
        self.master.finished(report, self._clock.now)
        self._pump_soon()
