"""Continuous batching with chunked prefill: who runs in the next step, and how long it takes."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from services.mock.kv_blocks import KVBlocks
from services.mock.request import Request, Status
from services.mock.timing import Timing

_INSTANT = 4096


@dataclass(slots=True)
class Batch:
    """Requests of one step: `chunks` of prompts, and `decoding` with the tokens each choice gains.
    `computed` and `cached` are prompt tokens of the chunks, for the duration."""

    chunks: list[tuple[Request, int]] = field(default_factory=list)
    decoding: list[tuple[Request, int]] = field(default_factory=list)
    computed: int = 0
    cached: int = 0
    end: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.chunks or self.decoding)

    def seconds(self, timing: Timing) -> float:
        """How long it takes."""
        tokens = context = steps = 0
        for request, count in self.decoding:
            choices, before = request.choices, request.num_prompt
            tokens += count * len(choices)
            context += sum(before + len(c.tokens) for c in choices) * count
            context += len(choices) * count * (count - 1) // 2
            steps = max(steps, count)
        prefill = timing.prefill_s(self.computed, self.cached)
        return prefill + timing.decode_s(tokens, context, steps)


@dataclass
class Scheduler:
    """Running requests first, in order of (priority, arrival). When blocks run out the youngest is
    preempted and starts again later, so the oldest can always finish. While nobody waits, a batch
    that only decodes may run for `steps_at_once` steps; if they are `instant`, any batch may."""

    blocks: KVBlocks
    max_num_seqs: int
    max_num_batched_tokens: int
    steps_at_once: int = 1
    instant: bool = False
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    loading: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    preemptions: int = 0

    def add(self, request: Request) -> None:
        request.status = Status.WAITING
        insort(self.waiting, request, key=lambda r: r.order)

    def has_room(self) -> bool:
        return len(self.running) + len(self.loading) < self.max_num_seqs

    def start(self, request: Request) -> None:
        """A request whose blocks are allocated takes part from the next step on."""
        request.status = Status.RUNNING
        insort(self.running, request, key=lambda r: r.order)

    def schedule(self) -> Batch:
        """The next step; blocks for it are allocated."""
        batch = Batch()
        budget = self.max_num_batched_tokens
        preemptions = self.preemptions
        for request in list(self.running):
            if budget <= 0:
                break
            if request.status is Status.RUNNING:
                budget -= self._take(request, budget, batch)
        while self.preemptions == preemptions and budget > 0 and self.waiting:
            request = self.waiting[0]
            if request.remote is not None or not self.has_room() or not self.reserve(request):
                break
            del self.waiting[0]
            self.start(request)
            budget -= self._take(request, budget, batch)
        if self.instant or (self.steps_at_once > 1 and not (batch.chunks or self.waiting)):
            self._lengthen(batch)
        return batch

    def _lengthen(self, batch: Batch) -> None:
        """More tokens for what decodes, as far as there are blocks."""
        for number, (request, _) in enumerate(batch.decoding):
            if not request.hands_over:
                most = request.source.sampling.max_tokens
                left = max(most - len(choice.tokens) for choice in request.choices)
                count = max(1, min(left, _INSTANT if self.instant else self.steps_at_once))
                if self._grow(request, count):
                    batch.decoding[number] = request, count

    def _take(self, request: Request, budget: int, batch: Batch) -> int:
        left = request.total - request.computed
        if request.computed and left <= len(request.choices):
            return self._decode(request, batch)
        missing = request.missing_item()
        if missing is not None:
            left = min(left, missing.offset - request.computed)
        count = min(left, budget)
        if count > 0:
            batch.chunks.append((request, count))
            batch.computed += count
            batch.cached += request.unpriced
            request.unpriced = 0
        return max(count, 0)

    def _decode(self, request: Request, batch: Batch) -> int:
        if request.missing_item() is not None:
            return 0
        if self._room_for(request):
            batch.decoding.append((request, 1))
            batch.cached += request.unpriced
            request.unpriced = 0
        return len(request.choices)

    def _room_for(self, request: Request) -> bool:
        """Blocks for the tokens a request gains next; False if it is preempted itself."""
        while not self._grow(request, 1):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _grow(self, request: Request, more: int) -> bool:
        need = request.blocks_needed(self.blocks.block_size, more) - request.holding.blocks
        return need <= 0 or self.blocks.grow(request.holding, need)

    def _preempt(self, request: Request) -> None:
        self.preemptions += 1
        self.preempted.append(request)
        self.running.remove(request)
        self.blocks.release(request.holding)
        request.reset()
        self.add(request)

    def reserve(self, request: Request) -> bool:
        """Blocks for all tokens that are known, known prefixes reused; False if there are too few.

        At least the last token is computed again: the next one is drawn from what comes out.
        """
        size = self.blocks.block_size
        keys = request.keys.extend(request.line()) if self.blocks.prefix_caching else []
        matched = self.blocks.match(keys)
        matched = min(matched, (request.total - 1) // size)
        fresh = request.blocks_needed(size, 0) - matched
        if not self.blocks.can_take(keys[:matched], fresh):
            return False
        request.holding = self.blocks.take(keys[:matched], fresh)
        request.stored = matched
        request.computed = request.unpriced = matched * size
        if request.cached is None:
            request.cached = min(request.computed, request.num_prompt)
        return True

    def remove(self, request: Request) -> None:
        """Forget a request; its blocks are the caller's business."""
        queues = {
            Status.RUNNING: self.running,
            Status.LOADING: self.loading,
            Status.WAITING: self.waiting,
        }
        if request.status in queues:
            queues[request.status].remove(request)
        request.status = Status.FINISHED

    def all_requests(self) -> list[Request]:
        return [*self.running, *self.loading, *self.waiting]
