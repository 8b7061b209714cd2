"""Which tokens of which requests run in the next step.

Continuous batching with chunked prefill. Requests that decode come first, with one token each; what
is left of `max_num_batched_tokens` goes to prompts, running ones first, in order of (rank by the
scheduling policy, arrival). While requests decode, prompts get at most `max_prefill_beside_decode`
tokens of a step: that bounds how long a prompt makes the others wait for their next token. There
are never more requests running than a step has tokens, so the oldest prompt gets some of every
step.

When blocks run out, the youngest running request is preempted and starts again later; where no
running request can go on, the oldest waiting one takes the place of younger ones. So the oldest can
always finish.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from services.engine.scheduling.awaited_items import AwaitedItems, chunk_size
from services.engine.scheduling.block_manager import BlockManager
from services.engine.scheduling.chunks import Chunk, chunk_of
from services.engine.scheduling.draft_budget import DraftBudget
from services.engine.scheduling.embedding_cache import EmbeddingCache
from services.engine.scheduling.limits import Awaits, Limits, Step, Unplace, never
from services.engine.scheduling.request import Request, RequestKey, Status
from services.engine.scheduling.spare_room import extend, leave_room, lengthen
from services.membership.events import CacheLog


@dataclass
class Scheduler:
    """The requests of an engine, each in one of four queues."""

    blocks: BlockManager  # of the KV cache
    embeddings: EmbeddingCache  # that prompts need
    limits: Limits  # of a step
    waiting: list[Request] = field(default_factory=list)  # to start, in order
    # to get blocks for KV from elsewhere, in order
    remote: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)  # are computed
    loading: list[Request] = field(default_factory=list)  # have blocks that KV is copied into
    preemptions: int = 0  # how often a request had to start again
    preempted: list[Request] = field(default_factory=list)  # those since the engine last looked
    started: list[Request] = field(default_factory=list)  # those that began to run, since then
    starved: Request | None = None  # could start if others did not hold blocks or slots
    log: CacheLog | None = None  # is told what becomes a known prefix
    drafts: DraftBudget | None = None  # how many tokens are guessed, None for none

    def __post_init__(self) -> None:
        self._awaited = AwaitedItems(self.embeddings)

    def add(self, request: Request) -> None:
        request.status = Status.WAITING
        insort(self.waiting, request, key=lambda r: r.order)

    def all_requests(self) -> Iterator[Request]:
        yield from self.running
        yield from self.loading
        yield from self.waiting
        yield from self.remote

    def schedule(
        self, unplace: Unplace, prompt_tokens: int | None = None, awaits: Awaits = never
    ) -> list[Chunk]:
        """The next step's chunks; their blocks are allocated. None is admitted in a step that
        preempts. `unplace` and `awaits` as of `Step`; `prompt_tokens` bounds prompts beside
        requests that decode further than the limits do."""
        if not (self.running or self.waiting):
            self.starved = None
            return []
        step = Step(self.limits.max_num_batched_tokens, unplace, self.limits.scored_tokens, awaits)
        preemptions = self.preemptions
        running = sorted(self.running, key=lambda r: r.order)
        decodes = [request for request in running if request.num_left == 1]
        for request in decodes:
            self._schedule_running(request, 1, step)
        step.prompts = self._for_prompts(step, prompt_tokens)
        for request in running if len(decodes) < len(running) else ():
            if request.num_left > 1 and step.prompts > 0:
                self._schedule_running(request, step.for_prompt(request), step)
        # A request started in a step without blocks to spare would be the youngest, and next to go.
        if self.preemptions == preemptions:
            self._admit_waiting(step)
        if self.limits.decode_steps > 1 and not self.waiting:
            lengthen(step, self.blocks, self.limits)
        if self.drafts is not None:
            leave_room(step, self.blocks, self.drafts)
        return step.chunks

    def _for_prompts(self, step: Step, most: int | None) -> int:
        if not step.chunks:
            return step.left
        bounds = [bound for bound in (self.limits.max_prefill_beside_decode, most) if bound]
        return min([step.left, *bounds])

    def _schedule_running(self, request: Request, budget: int, step: Step) -> None:
        if request.status is not Status.RUNNING:
            return
        count = chunk_size(request, self.embeddings, self.limits, budget, step.left)
        if count and self._grow(request, request.num_computed + count, step):
            step.add(chunk_of(request, count))

    def _admit_waiting(self, step: Step) -> None:
        """Start waiting requests in order; those that wait for embeddings, or for KV from a lower
        tier, are passed by."""
        self.starved = None
        for request in self._awaited.worth_a_look(self.waiting):
            if step.prompts <= 0:
                break
            if not self._admit(request, step):
                self.starved = request
                break

    @property
    def decoding(self) -> bool:
        """Whether a request waits for the next token of its output."""
        return any(request.num_left == 1 for request in self.running)

    def has_room(self) -> bool:
        return len(self.running) + len(self.loading) < self.limits.max_running

    def _admit(self, request: Request, step: Step) -> bool:
        """Start a waiting request, unless it waits for embeddings or KV; False if it must wait for
        others to end."""
        # In a step with nothing yet, `_find_room` may take a younger one's slot.
        if step.chunks and not self.has_room():
            return False
        matched = self.match_prefix(request)
        if step.awaits(request, matched):
            return True
        request.num_matched = request.num_computed = len(matched) * self.blocks.block_size
        # Pinned before it is known whether it starts: its embeddings come meanwhile.
        self.embeddings.pin(request)
        budget = step.for_prompt(request)
        count = chunk_size(request, self.embeddings, self.limits, budget, step.left)
        needed = self.blocks.blocks_for(request.num_computed + count) - len(matched)
        if count == 0 or not self._find_room(request, needed, matched, step):
            self._awaited.pass_by(request)
            return count == 0
        # Before others are allocated, for which blocks without an owner may be evicted.
        self.take_prefix(request, matched)
        extend(request, self.blocks, needed)
        self.waiting.remove(request)
        self.start(request)
        step.add(chunk_of(request, count))
        return True

    def _find_room(self, request: Request, needed: int, matched: list[int], step: Step) -> bool:
        """Whether there are a slot and blocks for a waiting request. If nothing else is in this
        step, all that run wait for embeddings, which an older request may hold: then it takes
        their place."""
        while not (self.has_room() and self.blocks.can_allocate(needed, matched)):
            victim = max(self.running, key=lambda r: r.order, default=None)
            if step.chunks or victim is None or victim.order < request.order:
                return False
            self.preempt(victim)
        return True

    def match_prefix(self, request: Request) -> list[int]:
        """Cached blocks that `request` can start from; its last token is always computed, and all
        of a prompt that is scored."""
        if request.scores_prompt:
            return []
        return self.blocks.match(self.usable_keys(request))

    def usable_keys(self, request: Request) -> list[bytes]:
        """Names of the blocks that `request` could start from, if they were there."""
        keys = request.keys.extend(request.tokens)
        # KV holds no logits: the next token is drawn from those of the last one.
        return keys[: (len(request.tokens) - 1) // self.blocks.block_size]

    def take_prefix(self, request: Request, matched: list[int]) -> None:
        self.blocks.acquire(matched)
        request.blocks = list(matched)
        request.num_computed = request.num_stored = len(matched) * self.blocks.block_size
        if request.num_cached is None:
            request.num_cached = min(request.num_computed, request.num_prompt)

    def start(self, request: Request) -> None:
        request.status = Status.RUNNING
        request.num_matched, request.awaits_item = 0, None
        self.running.append(request)
        self.started.append(request)

    def _grow(self, request: Request, num_tokens: int, step: Step) -> bool:
        """Give a running request room for `num_tokens`, preempting younger ones if needed."""
        needed = self.blocks.blocks_for(num_tokens) - len(request.blocks)
        while needed > 0 and not self.blocks.can_allocate(needed):
            victim = max((*self.running, *self.loading), key=lambda r: r.order)
            if victim in self.loading:
                step.unplace(victim)
            else:
                self.preempt(victim)
                step.remove(victim)
            if victim is request:  # all others are older: they go on, so that one always ends
                return False
        extend(request, self.blocks, needed)
        return True

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks away; it waits and is computed again."""
        self.running.remove(request)
        self.blocks.release(request.blocks)
        request.reset()
        self.preemptions += 1
        self.preempted.append(request)
        self.add(request)

    def computed(self, request: Request, num_tokens: int) -> None:
        """`num_tokens` of a request have KV: its full blocks become a known prefix."""
        request.num_computed = num_tokens
        self.store_prefix(request)
        if request.mm_items and num_tokens >= request.num_prompt:
            self.embeddings.unpin(request.key)
        elif request.mm_items:
            self.embeddings.release(request)

    def store_prefix(self, request: Request) -> None:
        full = request.num_computed // self.blocks.block_size
        if full == request.num_stored // self.blocks.block_size:
            return
        keys = request.keys.extend(request.tokens)
        new = [
            i
            for i in range(request.num_stored // self.blocks.block_size, full)
            if self.blocks.store(request.blocks[i], keys[i])
        ]
        request.num_stored = full * self.blocks.block_size
        if self.log is not None and new:
            self.log.blocks_stored(
                keys, new, request.tokens, request.source, lora_name=request.adapter_name
            )

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
