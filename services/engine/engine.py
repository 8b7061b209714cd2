"""An engine put together: connectors, models and the cores that its parts of the model call for."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from blake3 import blake3

from connectors.base import Changed, nobody_listens
from connectors.config import drop_namespace
from connectors.factory import Connectors
from connectors.host_memory import available_bytes
from connectors.kv.base import KVConnector
from connectors.meter import TransferStats
from connectors.node import Readable
from protocol.curve import Curve
from protocol.errors import ConfigError, TriptychError, error_info
from protocol.fleet_key import FleetKey
from protocol.keys import canonical_json
from protocol.refs import KVLayout
from protocol.types import EncodeOutput, EncodeRequest, GenerateRequest, RequestOutput
from services.engine.attention.kv_cache import DTYPES, KVCache, block_bytes, block_elements
from services.engine.config import EngineConfig
from services.engine.containment import StepGuard, added
from services.engine.messages import Ready
from services.engine.model.admission import ModelAdmission
from services.engine.model.language import LanguageModel
from services.engine.model.loader import parameter_bytes
from services.engine.model.runner import Runner
from services.engine.model.vision import VisionModel
from services.engine.publishing import EventThread
from services.engine.reports import counters_of, gauges_of
from services.engine.sampling.grammar import Grammars
from services.engine.sampling.sampler import Sampler
from services.engine.scheduling.block_manager import BlockManager
from services.engine.scheduling.embedding_cache import EmbeddingCache
from services.engine.scheduling.encode_queue import EncodeQueue
from services.engine.scheduling.generate_core import GenerateCore
from services.engine.scheduling.image_prefetch import Preparing, tokens_ahead
from services.engine.scheduling.limits import Limits
from services.engine.scheduling.rates import RateMeter
from services.engine.scheduling.scheduler import Scheduler
from services.engine.scheduling.seams import Clock
from services.engine.transfers.kv_fetches import Transfers
from services.membership.events import CacheLog

logger = logging.getLogger(__name__)
_CPU_KV_BYTES = 256 << 20


class Engine:
    """Owns everything an engine process holds; `wake` interrupts its wait from another thread. By
    `clock` (s) it times its steps and its requests' deadlines."""

    def __init__(
        self, config: EngineConfig, wake: Callable[[], None], clock: Clock = time.monotonic
    ) -> None:
        self.config = config = _resolved(config)
        self._clock = clock
        self.parameter_bytes: dict[str, int] = {}
        self.max_model_len = config.max_model_len
        self.meter = RateMeter()
        self._log = CacheLog(config.block_size) if config.events is not None else None
        self._curve = Curve.of(FleetKey(config.fleet_key))
        self._connectors = Connectors(config.ec, config.kv, config.device, self._curve)
        self._media = "vision" in config.parts
        self.kv: KVConnector | None = None
        self.generate: GenerateCore | None = None
        self.encode: EncodeQueue | None = None
        self._events: EventThread | None = None
        self._grammars: Grammars | None = None
        self.ec = self._connectors.make_ec(
            f"{config.model}@{config.revision[:12]}:{config.dtype}",
            produces="vision" in config.parts,
            consumes="language" in config.parts,
            changed=self._changes(of_store=True),
        )
        try:
            self._build(wake)
        except BaseException:
            self.close()  # peers of this host would find what is left of it
            raise

    def _changes(self, *, of_store: bool) -> Changed:
        """Who is told of embeddings that come and go: of the store's where there is one, as it
        holds them longer, else of the cache's."""
        if self._log is None or of_store != ("vision" in self.config.parts):
            return nobody_listens
        return self._log.embedding_changed

    def _build(self, wake: Callable[[], None]) -> None:
        parts = self.config.parts
        if "language" in parts:
            self.generate = self._language()
        if "vision" in parts:
            self.encode = self._vision(wake)
        self._events = self._publish()
        self._guard()

    def _guard(self) -> None:
        """Each part's steps fail on their own."""
        queue, core = self.encode, self.generate
        self._polling: StepGuard[None] = StepGuard(self._poll, lambda _: [], lambda: [])
        self._encoding = (
            StepGuard(queue.step, queue.fail_all, lambda: []) if queue is not None else None
        )
        self._generating = (
            StepGuard(core.step, core.fail_all, core.check_integrity) if core is not None else None
        )

    def _poll(self) -> list[None]:
        self.ec.poll(self.encode if self.encode is not None else ())
        return []

    def _publish(self) -> EventThread | None:
        """Blocks if tokens are generated here, embeddings if they are made or taken here."""
        events = self.config.events
        if events is None:
            return None
        kv = events.blocks() if self.generate is not None else None
        return EventThread(kv, events.embeddings() if self._media else None, curve=self._curve)

    def _language(self) -> GenerateCore:
        config = self.config
        model = LanguageModel(Path(config.model_dir), DTYPES[config.dtype], config.device)
        self.parameter_bytes["language"] = parameter_bytes(model.module)
        self._media = self._media or model.takes_media
        layout = model.kv_layout(config.block_size)
        self.layout = layout
        num_blocks = _num_blocks(config, block_bytes(layout))
        self.kv = self._connectors.make_kv(_compatibility(config, layout), config.device)
        pool = self.kv.allocate(num_blocks, block_elements(layout), DTYPES[config.dtype])
        blocks = BlockManager(
            num_blocks, config.block_size, prefix_caching=config.prefix_caching, log=self._log
        )
        embeddings = EmbeddingCache(
            self.ec,
            config.embedding_cache_bytes,
            model.embedding_layout,
            self._changes(of_store=False),
        )
        limits = Limits(
            config.max_num_seqs,
            config.max_num_batched_tokens,
            model.bidirectional_media,
            config.max_prefill_beside_decode,
        )
        scheduler = Scheduler(blocks, embeddings, limits, log=self._log)
        transfers = Transfers(
            self.kv,
            scheduler,
            vocabulary=model.text_config.vocab_size,
            fail_on_error=config.kv.load_failure_policy == "fail",
        )
        runner = Runner(model, KVCache(layout, pool), embeddings, Sampler(config.eos_token_ids))
        grammars = self._grammars = Grammars.load(
            Path(config.model_dir), model.text_config.vocab_size, config.eos_token_ids
        )
        capacity = num_blocks * config.block_size
        self.max_model_len = min(config.max_model_len, capacity)
        return GenerateCore(
            msgspec.structs.replace(config, max_model_len=self.max_model_len),
            ModelAdmission(model, grammars),
            scheduler,
            runner,
            transfers,
            self.meter,
            self._clock,
            self._connectors.meanwhile,
        )

    def _vision(self, wake: Callable[[], None]) -> EncodeQueue:
        config = self.config
        vision = VisionModel(
            Path(config.model_dir),
            DTYPES[config.dtype],
            config.device,
            config.max_media_pixels,
        )
        self.parameter_bytes["vision"] = parameter_bytes(vision.module)
        patches = config.max_encoder_patches
        pictures = Preparing(vision.prepare, tokens_ahead(patches), wake)
        return EncodeQueue(
            vision, pictures, self.ec, patches, self.meter, self._clock,
            self._connectors.meanwhile,
        )  # fmt: skip

    def ready(self) -> Ready:
        blocks = self.generate.scheduler.blocks if self.generate is not None else None
        return Ready(
            parameter_bytes=self.parameter_bytes,
            max_model_len=self.max_model_len,
            num_blocks=blocks.num_blocks if blocks is not None else 0,
            block_size=self.config.block_size,
            kv_layout=self.layout if blocks is not None else None,
            kv_endpoint=self.kv.endpoint() if self.kv is not None else {},
            ec_endpoint=self.ec.endpoint(),
            kv_bytes_per_token=block_bytes(self.layout) // self.config.block_size
            if blocks is not None
            else 0,
            events=self._events.sources if self._events is not None else [],
        )

    def step(self) -> tuple[list[RequestOutput], list[EncodeOutput]]:
        """Encode one batch and run one batch of tokens, as far as there is work. What raises ends
        requests, see `StepGuard`."""
        self._polling.step()
        encoded = self._encoding.step() if self._encoding is not None else []
        outputs = self._generating.step() if self._generating is not None else []
        if self._log is not None and self._events is not None:
            self._events.hand(self._log.take())
        return outputs, encoded

    def add(self, request: GenerateRequest) -> list[RequestOutput]:
        """Queue a request; returns outputs only if it is refused."""
        assert self.generate is not None
        core = self.generate

        def failed(error: TriptychError) -> list[RequestOutput]:
            core.abort([request.request_id])
            return [
                RequestOutput(request.request_id, finish_reason="error", error=error_info(error))
            ]

        return added(core.add, request, failed)

    def add_media(self, request: EncodeRequest) -> list[EncodeOutput]:
        """Queue a request's media items; returns those that are answered at once."""
        assert self.encode is not None
        queue = self.encode

        def failed(error: TriptychError) -> list[EncodeOutput]:
            queue.abort([request.request_id])
            return [EncodeOutput(request.request_id, "", error=error_info(error))]

        return added(queue.add, request, failed)

    def serve_peers(self) -> None:
        """Instead of a step that cannot be made now: peers are answered, leases renewed, and what
        has been let go is free again."""
        self._poll()
        if self.generate is not None:
            self.generate.transfers.serve()

    @property
    def wait_s(self) -> float:
        """How long the loop may sleep: not at all with work at hand, briefly while bytes may be
        moving, else until a command or a peer's message comes. To be asked just before."""
        if self.encode is not None and self.encode.runnable:
            return 0.0
        if self.generate is not None and self.generate.progressed:
            return 0.0
        if not self._connectors.arm():
            return 0.0
        waiting = self.generate is not None and (
            len(self.generate) or self.generate.transfers.active
        )
        if waiting or self.ec.active or (self.encode is not None and self.encode.blocked):
            return 0.001
        return 1.0

    @property
    def sockets(self) -> list[Readable]:
        """Readable when a peer has said or sent something."""
        return self._connectors.sockets

    def gauges(self) -> dict[str, float]:
        return gauges_of(self)

    def counters(self) -> dict[str, float]:
        return counters_of(self)

    @property
    def ec_capacity(self) -> int:
        """Bytes of embeddings that are kept for others."""
        return self.config.ec.ec_buffer_size

    def transfer_stats(self) -> list[TransferStats]:
        return [self.ec.stats(), *([self.kv.stats()] if self.kv is not None else [])]

    def check_integrity(self) -> list[str]:
        problems = self.ec.check_integrity()
        if self.generate is not None and self.kv is not None:
            problems += self.generate.check_integrity()
            if not self.generate.transfers.active:
                problems += self.kv.check_integrity()
        return problems

    def reset_caches(self, *, prefix: bool, encoder: bool) -> None:
        if prefix and self.generate is not None:
            self.generate.scheduler.blocks.reset_prefix_cache()
            if self._log is not None:
                self._log.blocks_cleared()
        if encoder:
            self.ec.clear()
            if self.generate is not None:
                self.generate.scheduler.embeddings.clear()

    def close(self) -> None:
        """Tell peers what is not wanted any more, then let go of everything, whatever of it
        fails."""
        with contextlib.ExitStack() as last_to_first:
            last_to_first.callback(drop_namespace)
            if self._events is not None:
                last_to_first.callback(self._events.close)
            last_to_first.callback(self.ec.close)
            if self.kv is not None:
                last_to_first.callback(self.kv.close)
            if self._grammars is not None:
                last_to_first.callback(self._grammars.close)
            if self.generate is not None:
                last_to_first.callback(self.generate.close)
            if self.encode is not None:
                last_to_first.callback(self.encode.close)


def _resolved(config: EngineConfig) -> EngineConfig:
    """`config` with `auto` replaced: a GPU if there is one, bfloat16 there and float32 on a CPU."""
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    _check_device(device)
    dtype = config.dtype
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    if dtype not in DTYPES:
        raise ConfigError(f"--dtype: '{dtype}' is not one of {', '.join(DTYPES)}")
    return msgspec.structs.replace(config, device=device, dtype=dtype)


def _check_device(device: str) -> None:
    """`ConfigError` if it is a GPU that is not here."""
    if device == "cpu":
        return
    if not torch.cuda.is_available():
        raise ConfigError(
            f"--device: {device} cannot be used: PyTorch finds no CUDA driver or GPU here"
        )
    if (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--device: there is no {device}: {torch.cuda.device_count()} GPUs found")


def _compatibility(config: EngineConfig, layout: KVLayout) -> str:
    """What two engines must share for the KV of one to mean anything to the other."""
    digest = blake3(canonical_json(msgspec.to_builtins(layout))).hexdigest()[:16]
    return f"{config.model}@{config.revision[:12]}:{digest}"


def _num_blocks(config: EngineConfig, block_bytes: int) -> int:
    """Blocks of the KV pool. `ConfigError` if there are none, or they need more than is free."""
    num_blocks = config.num_blocks or _pool_bytes(config) // block_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"KV cache holds no block of {block_bytes} bytes: raise --kv-cache-memory-bytes or, on "
            "a GPU, --gpu-memory-utilization, or lower --block-size"
        )
    needed, free = num_blocks * block_bytes, available_bytes()
    if config.device == "cpu" and needed > free:
        raise ConfigError(
            f"KV cache of {needed} bytes does not fit into the {free} bytes of free memory: "
            "lower --kv-cache-memory-bytes or --num-gpu-blocks-override"
        )
    return num_blocks


def _pool_bytes(config: EngineConfig) -> int:
    if config.kv_cache_bytes:
        return config.kv_cache_bytes
    if config.device == "cpu":
        # Other workers may be about to take as much of the same memory.
        return min(_CPU_KV_BYTES, available_bytes() // 8)
    free, total = torch.cuda.mem_get_info(config.device)
    used = total - free
    return max(0, int(total * config.gpu_memory_utilization) - used)
