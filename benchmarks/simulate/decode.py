"""A decode worker on virtual time.

As the mock workers' engine (`services.mock`): KV is copied once there is room, or what is missing
computed beside the others' steps; then the request takes part from the next step on. Steps between
two changes of the batch have a closed form, so a request costs microseconds however long its answer
is; tests hold it against that engine. Blocks for all of it are reserved: nobody is preempted.
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
    """`begun` is called when the KV has been copied, or, if `alone`, with the first token, which is
    computed here; `done` with the last. Of such a one `left` tokens are to be computed, `cached`
    were known, `unpriced` until a step has counted them; `stored` blocks are complete."""

    request: TraceRequest
    begun: Callable[[DecodeJob], None]
    done: Callable[[DecodeJob], None]
    alone: bool = False
    holding: Holding = field(default_factory=Holding)
    left: int = 0
    cached: int = 0
    unpriced: int = 0
    stored: int = 0


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
        self.alone: deque[DecodeJob] = deque()
        self.loading = 0
        self.running: list[tuple[int, int, DecodeJob]] = []
        self._joining: list[DecodeJob] = []
        self._computing: list[DecodeJob] = []
        self._chunks: list[tuple[DecodeJob, int]] = []
        self._plan: _Plan | None = None
        self._version = 0
        self._steps = 0
        self._context = 0
        self._order = 0

    def add(self, job: DecodeJob) -> None:
        """The KV of a request can be copied, or is to be computed."""
        self.count(1)
        if job.alone:
            job.left = job.request.tokens
            self.alone.append(job)
            self._join()
        else:
            self.waiting.append(job)
            self._admit()

    def _here(self) -> int:
        return len(self.running) + self.loading + len(self._joining) + len(self._computing)

    def load(self) -> Load:
        left = sum(job.left for job in (*self.alone, *self._computing))
        return Load(
            queued=len(self.waiting) + len(self.alone) + self.announced,
            running=self._here(),
            queued_tokens=len(self.running) + left,
            context_tokens=self._context,
            free_blocks=self.blocks.num_free,
            total_blocks=self.blocks.num_blocks,
            rates=self.rates,
        )

    def _admit(self) -> None:
        profile = self.profile
        while self.waiting:
            job = self.waiting[0]
            if self._here() >= profile.max_running or not self._reserve(job):
                return
            self.waiting.popleft()
            self.loading += 1

    def _reserve(self, job: DecodeJob) -> bool:
        known = self._take(job, self.blocks.match(job.request.prompt_keys))
        if known is None:
            return False
        missing = self.blocks.blocks_for(job.request.tokens) - known
        seconds = self.noise.on(self.profile.timing.kv_s(missing))
        self.clock.after(seconds, self._copied, job, known)
        return True

    def _take(self, job: DecodeJob, known: int) -> int | None:
        """Blocks for a request and its answer, of which so many are known; None if there are too
        few."""
        request, blocks = job.request, self.blocks
        keys = request.prompt_keys[:known]
        fresh = blocks.blocks_for(request.tokens + request.output) - known
        if not blocks.can_take(keys, fresh):
            return None
        job.holding = blocks.take(keys, fresh)
        self._evicted()
        return known

    def _copied(self, job: DecodeJob, known: int) -> None:
        self.loading -= 1
        self._name(job.request, job.holding, known, len(job.request.prompt_keys))
        job.begun(job)
        self._joining.append(job)
        self._join()

    def _join(self) -> None:
        """Who is here takes part from the next step on."""
        plan = self._plan
        if plan is None:
            self._start()
            return
        steps = plan.reached(self.clock.now - plan.start)
        if steps < plan.steps:
            plan.steps = steps
            self._finish_at(plan)

    def _run(self, job: DecodeJob) -> None:
        """A request that has its first token."""
        self._order, self._context = self._order + 1, self._context + job.request.tokens + 1
        last = self._steps + job.request.output - 1
        heapq.heappush(self.running, (last, self._order, job))

    def _start(self) -> None:
        """Steps until the first answer is complete, which `_join` may shorten; one if a prompt is
        computed in it."""
        for job in self._joining:
            self._run(job)
        self._joining.clear()
        self._plan = None
        batch, timing = len(self.running), self.profile.timing
        self._chunk(self.profile.step_tokens - batch)
        if not batch and not self._chunks:
            return
        first = timing.decode_s(batch, self._context, 1)
        more, steps = 0.0, 1
        if self._chunks:
            first += self._price()
        else:
            more = timing.decode_s(batch, self._context + batch, 1) - first
            steps = self.running[0][0] - self._steps
        self._plan = _Plan(self.clock.now, steps, self.noise.on(first), more)
        self._finish_at(self._plan)

    def _chunk(self, budget: int) -> None:
        """Take so many tokens of prompts into the next step."""
        for job in self._computing:
            budget -= self._compute(job, budget)
        while self.alone and budget > 0 and self._here() < self.profile.max_running:
            job = self.alone[0]
            most = (job.request.tokens - 1) // self.blocks.block_size  # the last token is computed
            known = self._take(job, min(self.blocks.match(job.request.prompt_keys), most))
            if known is None:
                return
            job.stored, job.cached = known, known * self.blocks.block_size
            job.unpriced, job.left = job.cached, job.left - job.cached
            self._computing.append(self.alone.popleft())
            budget -= self._compute(job, budget)

    def _compute(self, job: DecodeJob, budget: int) -> int:
        tokens = min(job.left, budget)
        if tokens > 0:
            self._chunks.append((job, tokens))
        return max(0, tokens)

    def _price(self) -> float:
        """Seconds that the chunks of a step take."""
        computed = cached = 0
        for job, tokens in self._chunks:
            computed, cached, job.unpriced = computed + tokens, cached + job.unpriced, 0
        return self.profile.timing.prefill_s(computed, cached)

    def _computed(self) -> None:
        """Chunks are computed; prompts that are complete have put out their first tokens."""
        for job, tokens in self._chunks:
            job.left -= tokens
            full = (job.request.tokens - job.left) // self.blocks.block_size
            self._name(job.request, job.holding, job.stored, full)
            job.stored = full
            if not job.left:
                self._computing.remove(job)
                job.begun(job)
                self._run(job)
        self._chunks.clear()

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
        self._computed()
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
