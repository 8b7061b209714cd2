"""Which tokens of which requests run in the next step.

Continuous batching with chunked prefill: a step takes up to `max_num_batched_tokens`, running
requests first, in order of (priority, arrival). When blocks run out, the youngest running request
is preempted and starts again later; the oldest can therefore always finish.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from services.engine.scheduling.block_manager import BlockManager
from services.engine.scheduling.embedding_cache import EmbeddingCache
from services.engine.scheduling.request import Request, RequestKey, Status
from services.membership.events import CacheLog


@dataclass(frozen=True)
class Chunk:
    """Tokens start … start + count − 1 of a request, and the choices that sample after them."""

    request: Request
    start: int
    count: int
    samplers: tuple[Request, ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True)
class Limits:
    """max_num_batched_tokens bounds a step, max_num_seqs the requests that run at once."""

    max_num_seqs: int
    max_num_batched_tokens: int
    whole_media: bool = False
    """No chunk may end inside a media span (its tokens see one another in both directions)."""

    @property
    def whole_media_tokens(self) -> int:
        """Longest media span that fits a step even when every other request decodes beside it."""
        return self.max_num_batched_tokens - self.max_num_seqs


@dataclass
class Scheduler:
    """`remote` wait for blocks to put KV from elsewhere in, `loading` have them; `unplace` takes
    them back. `starved` is a request that could start if others did not hold blocks or slots. `log`
    is told what becomes a known prefix."""

    blocks: BlockManager
    embeddings: EmbeddingCache
    limits: Limits
    waiting: list[Request] = field(default_factory=list)
    remote: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    loading: list[Request] = field(default_factory=list)
    preemptions: int = 0
    preempted: list[Request] = field(default_factory=list)
    starved: Request | None = None
    unplace: Callable[[Request], None] | None = None
    log: CacheLog | None = None

    def add(self, request: Request) -> None:
        request.status = Status.WAITING
        insort(self.waiting, request, key=lambda r: r.order)

    def all_requests(self) -> Iterator[Request]:
        yield from self.running
        yield from self.loading
        yield from self.waiting
        yield from self.remote

    def schedule(self) -> list[Chunk]:
        """The next step's chunks; their blocks are allocated.

        A preempted request is younger than the one that needed its blocks, so it is never among
        the chunks chosen before it; and nobody is admitted in a step that preempts.
        """
        chunks: list[Chunk] = []
        budget = self.limits.max_num_batched_tokens
        preemptions = self.preemptions
        for request in sorted(self.running, key=lambda r: r.order):
            if budget == 0:
                break
            if request.status is not Status.RUNNING:
                continue
            budget -= self._schedule_running(request, budget, chunks)
        if self.preemptions == preemptions:
            self._admit_waiting(budget, chunks)
        return chunks

    def _admit_waiting(self, budget: int, chunks: list[Chunk]) -> None:
        """Start waiting requests in order; those that wait for embeddings are passed by."""
        self.starved = None
        for request in list(self.waiting):
            if budget == 0:
                break
            taken = self._admit(request, budget, chunks)
            if taken is None:
                self.starved = request
                break
            budget -= taken

    def has_room(self) -> bool:
        return len(self.running) + len(self.loading) < self.limits.max_num_seqs

    def _schedule_running(self, request: Request, budget: int, chunks: list[Chunk]) -> int:
        count = self._chunk_size(request, budget)
        if count == 0 or not self._grow(request, request.num_computed + count):
            return 0
        chunks.append(_chunk(request, count))
        return count

    def _admit(self, request: Request, budget: int, chunks: list[Chunk]) -> int | None:
        """Start a waiting request; tokens taken (0 if it waits for embeddings), None if it must
        wait for others to end."""
        if not self.has_room():
            return None
        matched = self.match_prefix(request)
        request.num_computed = len(matched) * self.blocks.block_size
        self.embeddings.pin(request)
        count = self._chunk_size(request, budget)
        needed = self.blocks.blocks_for(request.num_computed + count) - len(matched)
        if count == 0 or not self.blocks.can_allocate(needed, matched):
            request.num_computed = 0
            return 0 if count == 0 else None
        self.take_prefix(request, matched)
        self._extend(request, needed)
        self.waiting.remove(request)
        self.start(request)
        chunks.append(_chunk(request, count))
        return count

    def match_prefix(self, request: Request) -> list[int]:
        """Cached blocks that `request` can start from; its last token is always computed."""
        keys = request.keys.extend(request.tokens)
        usable = (len(request.tokens) - 1) // self.blocks.block_size
        return self.blocks.match(keys[:usable])

    def take_prefix(self, request: Request, matched: list[int]) -> None:
        self.blocks.acquire(matched)
        request.blocks = list(matched)
        request.num_computed = request.num_stored = len(matched) * self.blocks.block_size
        if request.num_cached is None:
            request.num_cached = min(request.num_computed, request.num_prompt)

    def start(self, request: Request) -> None:
        request.status = Status.RUNNING
        self.running.append(request)

    def _chunk_size(self, request: Request, budget: int) -> int:
        """Tokens that can run now: within the budget, up to the first embedding not there yet, and
        without the last if what may follow it is not known yet."""
        start = request.num_computed
        end = min(len(request.tokens) - (not request.may_sample), start + budget)
        for item in request.items_in(start, end):
            if not self.embeddings.ready(item.mm_hash):
                end = max(start, item.offset)
                break
        if self.limits.whole_media:
            end = self._whole_spans(request, start, end)
        return end - start

    @staticmethod
    def _whole_spans(request: Request, start: int, end: int) -> int:
        """`end`, moved before any media span that it would cut."""
        for item in request.items_in(start, end):
            if item.end > end:
                return max(start, item.offset)
        return end

    def _grow(self, request: Request, num_tokens: int) -> bool:
        """Give a running request room for `num_tokens`, preempting younger ones if needed."""
        needed = self.blocks.blocks_for(num_tokens) - len(request.blocks)
        while not self.blocks.can_allocate(needed):
            victim = max((*self.running, *self.loading), key=lambda r: r.order)
            if victim in self.loading:
                assert self.unplace is not None
                self.unplace(victim)
            else:
                self.preempt(victim)
            if victim is request:
                return False
        self._extend(request, needed)
        return True

    def _extend(self, request: Request, count: int) -> None:
        if count > 0:
            blocks = self.blocks.allocate(count)
            assert blocks is not None
            request.blocks += blocks

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks away; it waits and is computed again."""
        self.running.remove(request)
        self.blocks.release(request.blocks)
        request.reset()
        self.preemptions += 1
        self.preempted.append(request)
        self.add(request)

    def computed(self, chunk: Chunk) -> None:
        """Account for a chunk that has run: its full blocks become a known prefix."""
        request = chunk.request
        request.num_computed = chunk.end
        self.store_prefix(request)
        if request.num_computed >= request.num_prompt:
            self.embeddings.unpin(request.key)
        elif request.mm_items:
            self.embeddings.release(request)

    def store_prefix(self, request: Request) -> None:
        keys = request.keys.extend(request.tokens)
        full = request.num_computed // self.blocks.block_size
        new = [
            i
            for i in range(request.num_stored // self.blocks.block_size, full)
            if self.blocks.store(request.blocks[i], keys[i])
        ]
        request.num_stored = full * self.blocks.block_size
        if self.log is not None and new:
            self.log.blocks_stored(keys, new, request.tokens, request.source)

    def finish(self, request: Request, *, keep_blocks: bool = False) -> list[int]:
        """Remove a request; returns its blocks if they are to outlive it, else releases them."""
        for queue in (self.running, self.loading, self.waiting, self.remote):
            if request in queue:
                queue.remove(request)
        request.status = Status.FINISHED
        self.embeddings.unpin(request.key)
        blocks, request.blocks = request.blocks, []
        if keep_blocks:
            return blocks
        self.blocks.release(blocks)
        return []

    def keys(self) -> set[RequestKey]:
        return {request.key for request in self.all_requests()}


def _chunk(request: Request, count: int) -> Chunk:
    """A chunk that samples if it reaches the end of what is known."""
    end = request.num_computed + count
    samplers = (request,) if end == len(request.tokens) else ()
    return Chunk(request, request.num_computed, count, samplers)
