"""A decode worker on virtual time.

As the mock workers' engine (`services.mock`): KV is copied once there is room, then the request
takes part from the next step on. Steps between two changes of the batch have a closed form, so a
request costs microseconds however long its answer is; a test holds it against that engine. Blocks
for the whole answer are reserved at the start, so nothing is preempted.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.simulate.clock import Clock
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import TraceRequest
from benchmarks.simulate.stage import Stage
from protocol.registry import Load
from services.mock.kv_blocks import Holding


@dataclass(eq=False, slots=True)
class DecodeJob:
    """`copied` is called when the KV is here, `done` with the last token."""

    request: TraceRequest
    copied: Callable[[], None]
    done: Callable[[DecodeJob], None]
    holding: Holding = field(default_factory=Holding)


@dataclass(slots=True)
class _Plan:
    """`steps` steps from `start` on; step k, from 0, takes `first_s + k * more_s`."""

    start: float
    steps: int
    first_s: float
    more_s: float

    def seconds(self, steps: int) -> float:
        return self.first_s * steps + self.more_s * steps * (steps - 1) / 2

    def reached(self, seconds: float) -> int:
        """The fewest steps, at least one, that take so long."""
        half = self.more_s / 2
        steps = seconds / self.first_s if self.first_s else 0.0
        if half:
            line = self.first_s - half
            steps = (math.sqrt(line * line + 4 * half * seconds) - line) / (2 * half)
        count = max(1, math.floor(steps))
        while self.seconds(count) < seconds - 1e-12:
            count += 1
        return count


class DecodeWorker(Stage):
    def __init__(self, name: str, profile: Profile, clock: Clock, seed: int) -> None:
        super().__init__(name, profile, clock, seed, profile.decode_blocks)
        self.announced = 0
        self.waiting: deque[DecodeJob] = deque()
        self.loading = 0
        self.running: list[tuple[int, int, DecodeJob]] = []
        self._joining: list[DecodeJob] = []
        self._plan: _Plan | None = None
        self._version = 0
        self._steps = 0
        self._context = 0
        self._order = 0

    def add(self, job: DecodeJob) -> None:
        """The KV of a request can be copied."""
        self.waiting.append(job)
        self.count(1)
        self._admit()

    def load(self) -> Load:
        return Load(
            queued=len(self.waiting) + self.announced,
            running=len(self.running) + self.loading + len(self._joining),
            queued_tokens=len(self.running),
            context_tokens=self._context,
            free_blocks=self.blocks.num_free,
            total_blocks=self.blocks.num_blocks,
            rates=self.rates,
        )

    def _admit(self) -> None:
        profile = self.profile
        while self.waiting:
            here = len(self.running) + self.loading + len(self._joining)
            job = self.waiting[0]
            if here >= profile.max_running or not self._reserve(job):
                return
            self.waiting.popleft()
            self.loading += 1

    def _reserve(self, job: DecodeJob) -> bool:
        request, blocks = job.request, self.blocks
        keys = request.prompt_keys[: blocks.match(request.prompt_keys)]
        fresh = blocks.blocks_for(request.tokens + request.output) - len(keys)
        if not blocks.can_take(keys, fresh):
            return False
        job.holding = blocks.take(keys, fresh)
        self._evicted()
        missing = blocks.blocks_for(request.tokens) - len(keys)
        seconds = self.noise.on(self.profile.timing.kv_s(missing))
        self.clock.after(seconds, self._copied, job, len(keys))
        return True

    def _copied(self, job: DecodeJob, known: int) -> None:
        self.loading -= 1
        self._name(job.request, job.holding, known, len(job.request.prompt_keys))
        job.copied()
        self._joining.append(job)
        plan = self._plan
        if plan is None:
            self._start()
            return
        steps = plan.reached(self.clock.now - plan.start)
        if steps < plan.steps:
            plan.steps = steps
            self._finish_at(plan)

    def _start(self) -> None:
        """Steps until the first answer is complete; `_copied` may shorten them."""
        for job in self._joining:
            self._order += 1
            self._context += job.request.tokens + 1
            last = self._steps + job.request.output - 1
            heapq.heappush(self.running, (last, self._order, job))
        self._joining.clear()
        self._plan = None
        if self.running:
            batch, timing = len(self.running), self.profile.timing
            first = self.noise.on(timing.decode_s(batch, self._context, 1))
            more = timing.decode_s(batch, self._context + batch, 1) - timing.decode_s(
                batch, self._context, 1
            )
            steps = self.running[0][0] - self._steps
            self._plan = _Plan(self.clock.now, steps, first, more)
            self._finish_at(self._plan)

    def _finish_at(self, plan: _Plan) -> None:
        self._version += 1
        end = max(self.clock.now, plan.start + plan.seconds(plan.steps))
        self.clock.at(end, self._end, self._version)

    def _end(self, version: int) -> None:
        if version != self._version or self._plan is None:
            return
        self.busy(self._plan.start, self.clock.now)
        self._steps += self._plan.steps
        self._context += len(self.running) * self._plan.steps
        while self.running and self.running[0][0] <= self._steps:
            self._leave(heapq.heappop(self.running)[2])
        self._admit()
        self._start()

    def _leave(self, job: DecodeJob) -> None:
        request = job.request
        self._context -= request.tokens + request.output
        full = (request.tokens + request.output - 1) // self.blocks.block_size
        self._name(request, job.holding, len(request.prompt_keys), full)
        self.blocks.release(job.holding)
        self.count(-1)
        job.done(job)
