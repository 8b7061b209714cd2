"""A worker's engine on virtual time: whoever calls `step` says what time it is.

No clock, no sockets, no asyncio: an event loop drives one worker, a simulator thousands.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import DeadlineExceeded, InvalidRequest
from protocol.kv_events import CacheEvent
from protocol.types import EncodeOutput, EncodeRequest, GenerateRequest, RequestOutput
from services.engine.scheduling.deadlines import Deadlines
from services.mock.embeddings import EmbeddingStore
from services.mock.encoding import EncodeQueue
from services.mock.events import EventLog
from services.mock.generation import Generation
from services.mock.kv_blocks import KVBlocks
from services.mock.loads import Action, KVLoads
from services.mock.media import Media
from services.mock.offers import OfferBody, Offers
from services.mock.scheduler import Batch, Scheduler
from services.mock.settings import EngineSettings
from services.mock.timing import Noise, Timing

_CATCH_UP_S = 0.05


@dataclass
class Step:
    """What happened, what the driver is to do for it, and when there is more (None: not before
    something is added or answered). `settled`: requests whose KV nobody need wait for any more."""

    outputs: list[RequestOutput] = field(default_factory=list)
    encoded: list[EncodeOutput] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    settled: list[str] = field(default_factory=list)
    kv_events: list[CacheEvent] = field(default_factory=list)
    ec_events: list[CacheEvent] = field(default_factory=list)
    next_time: float | None = None


class Engine:
    """Everything a mock worker computes and remembers. Times are seconds on one clock."""

    def __init__(self, settings: EngineSettings, timing: Timing, noise: Noise) -> None:
        self.settings = settings
        self.timing = timing
        self.noise = noise
        self.blocks = KVBlocks(
            settings.num_blocks, settings.block_size, prefix_caching=settings.prefix_caching
        )
        self.store = EmbeddingStore(settings.ec_cache_bytes, settings.row_bytes)
        self.scheduler = Scheduler(
            self.blocks,
            settings.max_num_seqs,
            settings.max_num_batched_tokens,
            settings.steps_at_once,
            instant=timing.instant_decode,
        )
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._timer_ids = 0
        self._actions: list[Action] = []
        self.offers = Offers(self.blocks, settings.lease_s)
        self.loads = KVLoads(
            self.scheduler, timing, noise, settings.compatibility, self._at, self._actions,
            keep_s=settings.lease_s / 3,
        )  # fmt: skip
        self.media = Media(
            self.store, timing, noise, self._at, self._actions, remote=settings.remote_embeddings
        )
        self.events = EventLog(self.blocks, self.store, enabled=settings.events)
        self.generation = Generation(
            settings, self.scheduler, self.offers, self.loads, self.media, self.events
        )
        self.encoding = EncodeQueue(
            self.store, timing, noise, settings.max_encoder_patches, self._embedding_handle
        )
        self.deadlines = Deadlines(self._alive, lambda: len(self.generation))
        self._batch = Batch()

    def _at(self, time: float, call: Callable[[float], None]) -> None:
        self._timer_ids += 1
        heapq.heappush(self._timers, (time, self._timer_ids, call))

    def _embedding_handle(self, mm_hash: str, rows: int) -> dict[str, Any]:
        size = rows * self.settings.row_bytes
        return {
            **self.embeddings_endpoint(),
            "size_bytes": size,
            "shape": [rows, self.settings.row_bytes // 2],
            "triptych": {"instance_id": self.settings.instance_id},
        }

    def embeddings_endpoint(self) -> dict[str, Any]:
        """What a handle has before there is any embedding: where to ask for it."""
        return {"peer_host": self.settings.host, "peer_port": self.settings.port}

    def add(self, source: GenerateRequest, now: float, local: Collection[str] = ()) -> None:
        """Queue a request; `local` are items whose media came with it. Raises `InvalidRequest`."""
        request = self.generation.add(source, local, now)
        if source.deadline_s is not None:
            self.deadlines.add(now + source.deadline_s, request.arrival, source.request_id)

    def _alive(self, request_id: str, arrival: int) -> bool:
        request = self.generation.find(request_id)
        return request is not None and request.arrival == arrival

    def _expired(self, now: float) -> list[RequestOutput]:
        outputs: list[RequestOutput] = []
        for request_id in self.deadlines.due(now):
            request = self.generation.find(request_id)
            if request is not None:
                error = DeadlineExceeded("the request's deadline has passed")
                outputs += self.generation.fail(request, error)
        return outputs

    def add_encode(self, request: EncodeRequest, now: float) -> list[EncodeOutput]:
        """Queue items; returns those answered at once. Raises `InvalidRequest`."""
        if not self.settings.encodes:
            raise InvalidRequest(f"a worker with the role {self.settings.role} encodes no media")
        return self.encoding.add(request, now)

    def abort(self, request_ids: Iterable[str], index: int | None = None) -> None:
        """Stop requests, or one choice of each; nothing is said of them any more."""
        names = list(request_ids)
        self.generation.abort(names, index)
        if index is None:
            self.encoding.abort(names)

    def embedding_found(self, mm_hash: str, answer: int | str, now: float) -> None:
        """Answer to `AskEmbedding`: rows, or why there is none."""
        self.media.found(mm_hash, answer, now)

    def kv_answered(self, request_id: str, answer: OfferBody | str, now: float) -> None:
        """Answer to `AskKV`: the offer, or why there is none."""
        self.loads.answered(request_id, answer, now)

    def kv_confirmed(self, request_id: str, held: bool) -> None:
        """Answer to `ConfirmKV`."""
        self.loads.confirmed(request_id, held)

    def step(self, now: float) -> Step:
        """Everything that is due at `now`, at most one batch; call again if `next_time` is now."""
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2](now)
        self.offers.expire(now)
        encoded = self.encoding.step(now)
        outputs = self._expired(now)
        outputs += self.generation.settle(now)
        self.loads.begin()
        start = now
        if self._batch and self._batch.end <= now:
            start = max(self._batch.end, now - _CATCH_UP_S)
            done, self._batch = self._batch, Batch()
            outputs += self.generation.run(done, now)
        if not self._batch:
            self._batch = self.scheduler.schedule()
            self._batch.end = start + self.noise.on(self._batch.seconds(self.timing))
            outputs += self.generation.settle(now)
        return self._taken(outputs, encoded)

    def _taken(self, outputs: list[RequestOutput], encoded: list[EncodeOutput]) -> Step:
        self.events.collect()
        step = Step(
            outputs,
            encoded,
            list(self._actions),
            list(self.offers.settled),
            self.events.kv,
            self.events.ec,
            self._next_time(),
        )
        self._actions.clear()
        self.offers.settled.clear()
        self.events.kv, self.events.ec = [], []
        return step

    def _next_time(self) -> float | None:
        times = [self._batch.end] if self._batch else []
        if self._timers:
            times.append(self._timers[0][0])
        others = self.encoding.next_time, self.offers.next_expiry, self.deadlines.next_time
        times += [time for time in others if time is not None]
        return min(times, default=None)

    def reset_caches(self, *, prefix: bool = False, encoder: bool = False) -> None:
        """Forget what no request needs."""
        if prefix:
            self.blocks.reset()
            self.events.cleared()
        if encoder:
            self.store.clear()
            self.events.embeddings_cleared()

    def check_integrity(self) -> list[str]:
        """Compare every book with every other; [] if nothing leaked."""
        return self.generation.check_integrity()
