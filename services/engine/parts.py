"""The parts of a model: a language model with its KV cache, a vision model with its queue."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from torch import nn

from connectors.base import Changed, ECConnector
from connectors.factory import Connectors
from connectors.kv.base import KVConnector
from protocol.refs import KVLayout
from services.engine.attention.kv_cache import DTYPES, KVCache, block_elements, pool_dtype
from services.engine.config import EngineConfig
from services.engine.drafting.drafters import draft_budget_of, draft_language_model, drafter_of
from services.engine.kv_memory import kv_compatibility, pool_size, profiled, tier_stores
from services.engine.loaded_model import ModelAdmission, language_model_of, prepared, runner_of
from services.engine.model.adapters import Adapters
from services.engine.model.decode_graphs import capture_on
from services.engine.model.language import LanguageModel
from services.engine.model.memory_profile import encode_peak
from services.engine.model.runner import Runner
from services.engine.model.sliced_vision import SlicedVision
from services.engine.model.text_encoder import EncoderRunner, TextEncoder, encoder_config
from services.engine.model.vision import VisionModel
from services.engine.sampling.grammar import Grammars
from services.engine.scheduling.block_manager import BlockManager
from services.engine.scheduling.chunks import StepSizes
from services.engine.scheduling.decode_delay import DecodeDelay
from services.engine.scheduling.embedding_cache import EmbeddingCache
from services.engine.scheduling.encode_queue import EncodeQueue
from services.engine.scheduling.generate_core import GenerateCore
from services.engine.scheduling.idle_blocks import IdleBlocks
from services.engine.scheduling.image_prefetch import ImagePrefetch, tokens_ahead
from services.engine.scheduling.limits import Limits
from services.engine.scheduling.scheduler import Scheduler
from services.engine.scheduling.seams import Clock, Meter
from services.engine.transfers.kv_fetches import KVFetches
from services.engine.transfers.kv_tiers import KVTiers
from services.frontend.clips.readers import ClipReaders
from services.membership.events import CacheLog

_DECODE_STEPS = 16  # in a row, whose blocks are allocated at once


@dataclass(frozen=True)
class Surroundings:
    """What both parts of an engine share."""

    config: EngineConfig  # with devices and dtypes resolved
    connectors: Connectors  # of the transports that are configured
    ec: ECConnector  # embeddings of all engines
    meter: Meter  # learns how fast steps are
    sizes: StepSizes  # the largest steps so far
    log: CacheLog | None  # what caches gain and lose, None where no master listens
    clock: Clock  # seconds
    delay: DecodeDelay  # how long prompts and pictures may hold up decodes
    computing: Callable[[], AbstractContextManager[None]]  # entered while a model computes
    watch: Callable[[nn.Module], None]  # is given each model


@dataclass(frozen=True)
class LanguagePart:
    """Generates tokens. Close `core`, then `grammars`, then `kv`."""

    core: GenerateCore  # schedules and runs requests
    kv: KVConnector  # hands KV over to other engines
    grammars: Grammars  # compiles what outputs are held to, in threads
    layout: KVLayout  # of one KV block
    max_model_len: int  # tokens of a prompt and its output that the pool has room for
    takes_media: bool  # whether prompts may hold pictures
    parameter_bytes: int  # size of the weights
    adapters: Adapters | None  # LoRA adapters, None where none may be loaded


@dataclass(frozen=True)
class VisionPart:
    """Encodes pictures."""

    queue: EncodeQueue
    parameter_bytes: int  # size of the weights
    activation_bytes: int  # what a run takes beside them, 0 where it was not measured


def language_part(shared: Surroundings, changed: Changed, activations: int = 0) -> LanguagePart:
    """Load the model and allocate its KV pool, which leaves `activations` bytes to others.
    `changed` is told what the cache of embeddings gains and loses."""
    if shared.config.pooler is not None and shared.config.pooler.encoder:
        shared = replace(shared, config=encoder_config(shared.config))
    config = shared.config
    model, draft = language_model_of(config), draft_language_model(config)
    shared.watch(model.module)
    layout = model.kv_layout(config.block_size)
    # What is pooled never decodes.
    eager = config.enforce_eager or config.pooler is not None
    capture = capture_on(config.device, enforce_eager=eager)
    num_blocks, max_model_len = pool_size(config, model, draft, capture, activations)
    # Into memory that the pool leaves to them; before anything is open that a bad one would leave.
    if model.adapters is not None:
        model.adapters.load_all(config.lora_modules)
    with contextlib.ExitStack() as opened:
        compatibility = kv_compatibility(config, layout)
        kv = shared.connectors.make_kv(compatibility, config.device)
        opened.callback(kv.close)
        # One block more, for rows that pad a captured step and for steps that compile kernels.
        spare = config.device != "cpu" or capture is not None
        pool = kv.allocate(num_blocks + spare, block_elements(layout), pool_dtype(layout))
        cache = KVCache(layout, pool)
        graphs = prepared(model, cache, capture, num_blocks, config.max_num_seqs, max_model_len)
        embeddings = EmbeddingCache(
            shared.ec, config.embedding_cache_bytes, model.embedding_layout, changed
        )
        idle = IdleBlocks()
        scheduler = _scheduler(
            shared, num_blocks, embeddings, model, idle, recorded=graphs is not None
        )
        vocabulary = model.text_config.vocab_size
        grammars = Grammars.load(Path(config.model_dir), vocabulary, config.eos_token_ids)
        opened.callback(grammars.close)
        stores = tier_stores(config, pool, compatibility)
        for store in stores:
            opened.callback(store.close)
        drafter = drafter_of(config, draft, num_blocks, vocabulary)
        runner = runner_of(config, model, cache, embeddings, graphs, drafter)
        core = _core(
            replace(shared, config=msgspec.structs.replace(config, max_model_len=max_model_len)),
            ModelAdmission(model, grammars, config.served_names),
            scheduler,
            runner,
            _fetches(config, kv, scheduler, vocabulary),
            KVTiers(scheduler, stores, idle, shared.meter, shared.clock, shared.log),
        )
        # Nothing has failed: from here on the caller closes what is open.
        opened.pop_all()
    return LanguagePart(
        core,
        kv,
        grammars,
        layout,
        max_model_len,
        model.takes_media,
        model.parameter_bytes + (draft.parameter_bytes if draft is not None else 0),
        model.adapters,
    )


def _core(
    shared: Surroundings,
    admission: ModelAdmission,
    scheduler: Scheduler,
    runner: Runner | EncoderRunner,
    fetches: KVFetches,
    tiers: KVTiers,
) -> GenerateCore:
    return GenerateCore(
        shared.config,
        admission,
        scheduler,
        runner,
        fetches,
        shared.meter,
        shared.clock,
        shared.computing,
        delay=shared.delay,
        tiers=tiers,
        sizes=shared.sizes,
        launch=runner.launch if isinstance(runner, Runner) else None,
    )


def _fetches(
    config: EngineConfig, kv: KVConnector, scheduler: Scheduler, vocabulary: int
) -> KVFetches:
    fails = config.kv.load_failure_policy == "fail"
    return KVFetches(kv, scheduler, vocabulary=vocabulary, fail_on_error=fails)


def _scheduler(
    shared: Surroundings,
    num_blocks: int,
    embeddings: EmbeddingCache,
    model: LanguageModel | TextEncoder,
    idle: IdleBlocks,
    *,
    recorded: bool,
) -> Scheduler:
    config = shared.config
    blocks = BlockManager(
        num_blocks,
        config.block_size,
        prefix_caching=config.prefix_caching,
        log=shared.log,
        idle=idle,
    )
    one_step = not recorded or config.speculation is not None
    limits = Limits(
        config.max_num_seqs,
        config.max_num_batched_tokens,
        model.bidirectional_media,
        config.max_prefill_beside_decode,
        decode_steps=1 if one_step else _DECODE_STEPS,
        # Steps with an adapter are not recorded: blocks for several of them would lie idle.
        adapted_decode_steps=False,
        whole_prompts=isinstance(model, TextEncoder),
    )
    return Scheduler(blocks, embeddings, limits, log=shared.log, drafts=draft_budget_of(config))


def vision_part(shared: Surroundings, wake: Callable[[], None]) -> VisionPart:
    """The vision model and the queue of pictures before it. `wake` is called from the threads that
    prepare pictures."""
    config = shared.config
    vision = VisionModel(
        Path(config.model_dir),
        DTYPES[config.dtype],
        config.device,
        config.max_media_pixels,
        config.weight_layout,
        ClipReaders(config.clips, config.clip_readers) if config.clip_readers else None,
        fused=config.fused_kernels,
    )
    shared.watch(vision.module)
    patches = config.max_encoder_patches
    memory = profiled(config)
    activations = 0
    if memory is not None:
        activations = encode_peak(vision, memory, patches, config.max_media_pixels)
    # An encoder has no tokens that its runs could hold up.
    sliced = "language" in config.parts and config.max_decode_delay_s > 0
    queue = EncodeQueue(
        vision,
        ImagePrefetch(vision.prepare, tokens_ahead(patches), wake, ended=vision.close),
        shared.ec,
        patches,
        shared.meter,
        shared.clock,
        shared.computing,
        SlicedVision(vision, shared.clock) if sliced else None,
        shared.sizes,
    )
    return VisionPart(queue, vision.parameter_bytes, activations)
