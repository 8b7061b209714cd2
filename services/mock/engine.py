"""A worker's engine on virtual time: the real one's scheduling core, timed instead of computing.

No sockets, no asyncio: an event loop drives one worker, a simulator thousands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from connectors.base import Changed, no_listener
from connectors.meter import TransferStats
from protocol.errors import InvalidRequest
from protocol.refs import has_remote_prefill
from protocol.types import EncodeOutput, EncodeRequest, GenerateRequest, RequestOutput
from services.engine.reports import counters_of, gauges_of
from services.engine.scheduling.admission_checks import MakeKeys
from services.engine.scheduling.block_manager import BlockManager
from services.engine.scheduling.embedding_cache import EmbeddingCache
from services.engine.scheduling.encode_queue import EncodeQueue
from services.engine.scheduling.generate_core import GenerateCore
from services.engine.scheduling.idle_blocks import IdleBlocks
from services.engine.scheduling.scheduler import Scheduler
from services.engine.scheduling.seams import Admission, Clock
from services.engine.transfers.kv_fetches import KVFetches
from services.engine.transfers.kv_tiers import KVTiers
from services.membership.events import CacheLog
from services.mock.actions import Action, Step
from services.mock.ec import CountedEC, RowForm
from services.mock.kv import CountedKV, timed_stores
from services.mock.kv_loads import CountedLoads
from services.mock.kv_offers import CountedOffers
from services.mock.runner import AtOnce, KnownRates, TimedAdmission, TimedRunner, TimedVision, Words
from services.mock.settings import EngineSettings
from services.mock.timed_steps import TimedEncoding, TimedGeneration, Worked
from services.mock.timing import Noise, Timers, Timing


class Engine:
    """Everything a mock worker computes and remembers. `generate` and `encode` are the real
    engine's cores, before connectors that hold nothing."""

    def __init__(
        self,
        settings: EngineSettings,
        timing: Timing,
        noise: Noise,
        clock: Clock,
        *,
        words: Words | None = None,
        admission: Admission | None = None,
        make_keys: MakeKeys | None = None,
        log: CacheLog | None = None,
    ) -> None:
        """`words` and `admission` are the model's part, if it is another than `settings` says;
        `make_keys` names a request's blocks, `log` collects what caches gain and lose."""
        self.settings = settings
        self.timing = timing
        self.noise = noise
        self.clock = clock
        self.timers = Timers()
        self.meter = KnownRates(timing, settings.row_bytes)
        self._actions: list[Action] = []
        passing = timing, noise, clock, self.timers, self._actions
        self.offers = CountedOffers(settings, clock)
        self.loads = CountedLoads(*passing, keep_s=settings.lease_s / 3)
        self.kv = CountedKV(settings, self.offers, self.loads)
        self._log = log or (CacheLog(settings.block_size) if settings.events else None)
        self.ec = CountedEC(settings, *passing, changed=self._changes(of_store=True))
        self._idle = IdleBlocks()
        self.blocks = BlockManager(
            settings.num_blocks,
            settings.block_size,
            prefix_caching=settings.prefix_caching,
            log=self._log,
            idle=self._idle,
        )
        self.generate: GenerateCore | None = None
        self._generation: TimedGeneration | None = None
        if settings.generates:
            runner = TimedRunner(words or settings.vocabulary)
            self.generate = self._language(runner, admission or TimedAdmission(), make_keys)
            self._generation = TimedGeneration(self.generate, runner, timing, noise)
        self.encode: EncodeQueue | None = None
        self._encoding: TimedEncoding | None = None
        self._tokens_next = False
        if settings.encodes:
            vision, patches = TimedVision(), settings.max_encoder_patches
            self.encode = EncodeQueue(vision, AtOnce(), self.ec, patches, self.meter, clock)
            self._encoding = TimedEncoding(self.encode, vision, timing, noise)

    def _changes(self, *, of_store: bool) -> Changed:
        """Who is told of embeddings that come and go: of the store's where there is one, as it
        holds them longer, else of the cache's."""
        if self._log is None or of_store != self.settings.encodes:
            return no_listener
        return self._log.embedding_changed

    def _language(
        self, runner: TimedRunner, admission: Admission, make_keys: MakeKeys | None
    ) -> GenerateCore:
        settings = self.settings
        embeddings = EmbeddingCache(
            self.ec,
            settings.ec_cache_bytes,
            RowForm(settings.row_bytes),
            self._changes(of_store=False),
        )
        limits = settings.limits(instant=self.timing.instant_decode)
        scheduler = Scheduler(self.blocks, embeddings, limits, log=self._log)
        transfers = KVFetches(
            self.kv,
            scheduler,
            vocabulary=TimedAdmission.vocabulary,
            fail_on_error=settings.fail_on_kv_error,
        )
        return GenerateCore(
            settings.engine_config(), admission, scheduler, runner, transfers, self.meter,
            self.clock, make_keys=make_keys, tiers=self._tiers(scheduler),
        )  # fmt: skip

    def _tiers(self, scheduler: Scheduler) -> KVTiers:
        stores = timed_stores(self.settings, self.timing, self.clock, self.timers)
        return KVTiers(scheduler, stores, self._idle, self.meter, self.clock, self._log)

    @property
    def core(self) -> GenerateCore:
        """`InvalidRequest` if this worker generates no tokens."""
        if self.generate is None:
            raise InvalidRequest(f"a worker with the role {self.settings.role} generates no tokens")
        return self.generate

    def add(self, source: GenerateRequest, local: Collection[str] = ()) -> None:
        """Queue a request; `local` are items whose media came with it. Raises `InvalidRequest`."""
        # Before it is expected, as it may be refused. Embeddings are asked for in a later step.
        self.core.admit(source)
        # Fetched KV needs no embeddings: what is expected for it would never be released.
        if not has_remote_prefill(source.kv_transfer_params):
            self.ec.expect(source.request_id, source.mm_items, local)

    def add_encode(self, request: EncodeRequest) -> list[EncodeOutput]:
        """Queue items; returns those answered at once. Raises `InvalidRequest`."""
        if self.encode is None:
            raise InvalidRequest(f"a worker with the role {self.settings.role} encodes no media")
        return self.encode.add(request)

    def abort(self, request_ids: Iterable[str], index: int | None = None) -> None:
        """Stop requests, or one choice of each; nothing is said of them any more."""
        names = list(request_ids)
        if self.generate is not None:
            self.generate.abort(names, index)
        if self.encode is not None and index is None:
            self.encode.abort(names)

    def step(self) -> Step:
        """Everything that is due by now; call again if `next_time` is now."""
        now = self.clock()
        self.timers.run(now)
        worked: Worked = []
        encoded, outputs = self._compute(now, worked)
        # Copied and cleared, not replaced: the connectors hold the same lists.
        step = Step(outputs, encoded, list(self._actions), list(self.offers.settled))
        if self._log is not None:
            step.kv_events, step.ec_events = self._log.take()
        step.worked = worked
        self._actions.clear()
        self.offers.settled.clear()
        step.next_time = self._next_time()
        return step

    def _compute(
        self, now: float, worked: Worked
    ) -> tuple[list[EncodeOutput], list[RequestOutput]]:
        """Both parts share one device: a run of pictures, then a batch of tokens, by turns."""
        encoding, generation = self._encoding, self._generation
        if encoding is None or generation is None:
            encoded = encoding.step(now, worked) if encoding is not None else []
            return encoded, generation.step(now, worked) if generation is not None else []
        if self._tokens_next:
            outputs = generation.step(now, worked, held=encoding.busy(now), wanted=encoding.waits)
            encoded = encoding.step(now, worked, held=generation.busy(now))
        else:
            encoded = encoding.step(now, worked, held=generation.busy(now))
            outputs = generation.step(now, worked, held=encoding.busy(now), wanted=encoding.waits)
        if encoding.busy(now) or generation.busy(now):
            self._tokens_next = encoding.busy(now)
        return encoded, outputs

    def _next_time(self) -> float | None:
        times = [
            self.timers.next_time,
            self.offers.next_time,
            self.generate.tiers.next_time if self.generate is not None else None,
            *(self._generation.times if self._generation is not None else ()),
            *(self._encoding.times if self._encoding is not None else ()),
        ]
        return min((time for time in times if time is not None), default=None)

    @property
    def ec_capacity(self) -> int:
        """Bytes of embeddings that are kept for others."""
        return self.settings.ec_cache_bytes

    def transfer_stats(self) -> list[TransferStats]:
        return [self.ec.stats(), self.kv.stats()]

    def device_memory(self) -> dict[str, float]:
        """It has no GPU."""
        return {}

    def gauges(self) -> dict[str, float]:
        return gauges_of(self)

    def counters(self) -> dict[str, float]:
        values = counters_of(self)
        if self.generate is not None:
            values["kv_expired"] = self.offers.expired
        came = self.ec.encoded  # media that came with requests
        values["mm_encoded"] = values.get("mm_encoded", 0) + came
        return values

    def reset_caches(self, *, prefix: bool = False, encoder: bool = False) -> None:
        """Forget what no request needs."""
        if prefix:
            self.blocks.reset_prefix_cache()
            if self.generate is not None:
                self.generate.tiers.clear()
            if self._log is not None:
                self._log.blocks_cleared()
        if encoder:
            self.ec.clear()
            if self.generate is not None:
                self.generate.scheduler.embeddings.clear()

    def check_integrity(self) -> list[str]:
        """Compare every book with every other; [] if nothing leaked."""
        problems = self.ec.check_integrity()
        if self.generate is None:
            return problems
        if self.ec.expecting and not len(self.generate):
            problems.append("embeddings are expected for requests that have ended")
        return problems + self.generate.check_integrity()
