"""A prefill worker on virtual time.

As the mock workers' engine (`services.mock`): chunks within a budget of tokens per step, oldest
first, prefixes reused, a chunk ends before a picture that is not there, and the KV is held until it
has been copied. Only what costs time is computed, so that a request costs microseconds; a test
holds it against that engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.simulate.clock import Clock
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import Picture, TraceRequest
from benchmarks.simulate.stage import Stage
from protocol.registry import Load
from services.mock.embeddings import EmbeddingStore
from services.mock.kv_blocks import Holding


@dataclass(eq=False, slots=True)
class PrefillJob:
    """`missing`: pictures whose embeddings are not here; `coming`: those on their way."""

    request: TraceRequest
    done: Callable[[PrefillJob], None]
    missing: dict[str, Picture] = field(default_factory=dict)
    coming: set[str] = field(default_factory=set)
    holding: Holding = field(default_factory=Holding)
    computed: int = 0
    cached: int = 0
    unpriced: int = 0
    stored: int = 0

    def until(self) -> int:
        """Tokens that can be computed with the embeddings that are here."""
        blocked = [p.offset for p in self.missing.values() if p.end > self.computed]
        return min(blocked, default=self.request.tokens)


class PrefillWorker(Stage):
    """`lost` is told of a picture that was thought to be here and is not."""

    def __init__(
        self, name: str, profile: Profile, clock: Clock, seed: int,
        lost: Callable[[PrefillJob, Picture], None],
    ) -> None:  # fmt: skip
        super().__init__(name, profile, clock, seed, profile.prefill_blocks)
        self.store = EmbeddingStore(profile.prefill_media_bytes, profile.row_bytes)
        self.waiting: deque[PrefillJob] = deque()
        self.running: list[PrefillJob] = []
        self._lost = lost
        self._awaiting: dict[str, list[PrefillJob]] = {}
        self._chunks: list[tuple[PrefillJob, int]] = []
        self._left = 0

    def add(self, job: PrefillJob) -> None:
        """Queue a request; embeddings in the store are taken at once."""
        for item in job.request.items:
            if self.store.find(item.mm_hash) is None:
                job.missing[item.mm_hash] = item
                self._awaiting.setdefault(item.mm_hash, []).append(job)
        self.waiting.append(job)
        self._left += job.request.tokens
        self.count(1)
        self._begin()

    def embedding(self, mm_hash: str, rows: int) -> None:
        """An embedding has been copied here."""
        self.store.put(mm_hash, rows)
        for job in self._awaiting.pop(mm_hash, ()):
            job.missing.pop(mm_hash, None)
        self._changed_media()
        self._begin()

    def release(self, job: PrefillJob) -> None:
        """The KV has been copied."""
        self.blocks.release(job.holding)
        self._begin()

    def load(self) -> Load:
        return Load(
            queued=len(self.waiting),
            running=len(self.running),
            queued_tokens=self._left,
            context_tokens=sum(job.computed for job in self.running),
            free_blocks=self.blocks.num_free,
            total_blocks=self.blocks.num_blocks,
            ec_bytes=self.store.size,
            ec_capacity_bytes=self.store.capacity,
            rates=self.rates,
        )

    def _begin(self) -> None:
        """Start a step, unless one is under way or nothing can be computed."""
        if self._chunks:
            return
        budget, profile = self.profile.step_tokens, self.profile
        for job in self.running:
            budget -= self._take(job, budget)
        while self.waiting and budget > 0:
            job = self.waiting[0]
            if len(self.running) >= profile.max_running or not self._reserve(job):
                break
            self.waiting.popleft()
            self.running.append(job)
            budget -= self._take(job, budget)
        if self._chunks:
            computed = sum(tokens for _, tokens in self._chunks)
            cached = sum(job.unpriced for job, _ in self._chunks)
            for job, _ in self._chunks:
                job.unpriced = 0
            seconds = self.noise.on(profile.timing.prefill_s(computed, cached))
            self.busy(self.clock.now, self.clock.now + seconds)
            self.clock.after(seconds, self._end)

    def _take(self, job: PrefillJob, budget: int) -> int:
        tokens = min(job.until() - job.computed, budget)
        if tokens <= 0:
            return 0
        self._chunks.append((job, tokens))
        return tokens

    def _reserve(self, job: PrefillJob) -> bool:
        request, blocks = job.request, self.blocks
        matched = blocks.match(request.prompt_keys)
        matched = min(matched, (request.tokens - 1) // blocks.block_size)
        keys = request.prompt_keys[:matched]
        fresh = blocks.blocks_for(request.tokens) - matched
        if not blocks.can_take(keys, fresh):
            return False
        job.holding = blocks.take(keys, fresh)
        self._evicted()
        job.stored = matched
        job.computed = job.cached = job.unpriced = matched * blocks.block_size
        self._left -= job.computed
        for item in list(job.missing.values()):
            if item.end > job.computed and item.mm_hash not in job.coming:
                self._lost(job, item)
        return True

    def _end(self) -> None:
        chunks, self._chunks = self._chunks, []
        for job, tokens in chunks:
            job.computed += tokens
            self._left -= tokens
            full = job.computed // self.blocks.block_size
            self._name(job.request, job.holding, job.stored, full)
            job.stored = full
            if job.computed == job.request.tokens:
                self.running.remove(job)
                self.count(-1)
                self._forget_missing(job)
                job.done(job)
        self._begin()

    def _forget_missing(self, job: PrefillJob) -> None:
        """Pictures inside a prefix that was here."""
        for mm_hash in job.missing:
            self._awaiting[mm_hash].remove(job)
            if not self._awaiting[mm_hash]:
                del self._awaiting[mm_hash]

    def _changed_media(self) -> None:
        self._media(self.store.changes)
