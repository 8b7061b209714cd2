"""What an engine says of itself: its load for a master, gauges and counters for people."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

import msgspec

from connectors.base import ECConnector
from connectors.meter import TransferStats
from protocol.errors import InvalidRequest, TriptychError, error_info
from protocol.histogram import Histogram
from protocol.kv_events import short_key
from protocol.registry import Load, Rates
from protocol.types import RequestOutput
from services.engine.messages import AdapterTable, ChangeAdapters, LoadAdapter, Query, Statistics
from services.engine.scheduling.encode_queue import EncodeQueue
from services.engine.scheduling.generate_core import GenerateCore
from services.engine.scheduling.scheduler import Scheduler
from services.engine.scheduling.seams import Meter
from services.engine.transfers.kv_tiers import KVTiers

logger = logging.getLogger(__name__)


class Reporting(Protocol):
    """What there is to tell of an engine, with a model or without. `ec_capacity` in bytes."""

    @property
    def generate(self) -> GenerateCore | None: ...

    @property
    def encode(self) -> EncodeQueue | None: ...

    @property
    def ec(self) -> ECConnector: ...

    @property
    def meter(self) -> Meter: ...

    @property
    def ec_capacity(self) -> int: ...

    def transfer_stats(self) -> list[TransferStats]: ...

    def device_memory(self) -> dict[str, float]: ...

    def check_integrity(self) -> list[str]: ...


def answer(engine: Reporting, query: Query) -> Statistics:
    """What a worker has asked for."""
    blocks = engine.generate.scheduler.blocks if engine.generate is not None else None
    version = blocks.version if blocks is not None else 0
    keys = None
    if blocks is not None and query.keys_since not in (None, version):
        keys = [short_key(key) for key in blocks.known()]
    return Statistics(
        query.query_id,
        gauges_of(engine),
        counters_of(engine),
        engine.transfer_stats(),
        histograms_of(engine),
        engine.check_integrity() if query.check else [],
        load_of(engine),
        version,
        keys,
        awaited_of(engine) if query.awaited else 0,
    )


class LoadableAdapters(Protocol):
    """The LoRA adapters of an engine's model."""

    @property
    def revisions(self) -> dict[str, str]: ...

    def load(self, name: str, folder: Path) -> None: ...

    def unload(self, name: str) -> None: ...


def adapters_after(adapters: LoadableAdapters | None, wanted: ChangeAdapters) -> AdapterTable:
    """Load or unload a LoRA adapter; None where the engine takes none."""
    try:
        if adapters is None:
            raise InvalidRequest(
                "this worker takes no LoRA adapters: start it with --enable-lora", param="lora_name"
            )
        if isinstance(wanted, LoadAdapter):
            adapters.load(wanted.name, Path(wanted.folder))
        else:
            adapters.unload(wanted.name)
    except TriptychError as error:
        return AdapterTable(wanted.query_id, error=error_info(error))
    # A caller names the files that are read: no error of theirs may end the step loop.
    except Exception as error:
        logger.exception("LoRA adapter '%s' could not be changed", wanted.name)
        return AdapterTable(wanted.query_id, error=error_info(error))
    return AdapterTable(wanted.query_id, adapters.revisions)


def awaited_of(engine: Reporting) -> int:
    """KV offers and embeddings that requests on other workers still need."""
    offers = len(engine.generate.transfers.offers) if engine.generate is not None else 0
    return offers + engine.ec.awaited


def success(output: RequestOutput, *, hands_over: bool) -> str:
    """How a choice has ended well, "" if it has not: an error is counted as one. `hands_over`:
    another worker decodes, unless the choice ends by itself at its first token."""
    if output.finish_reason in (None, "error"):
        return ""
    return (
        "handed_over" if hands_over and output.finish_reason == "length" else output.finish_reason
    )


def load_of(engine: Reporting) -> Load:
    """Load as of now, with the rates measured so far.

    An encoder has its store's bytes to tell of, others those of the embeddings beside the engine.
    """
    # The meter goes by the growth of the connectors' counts from one reading to the next.
    engine.meter.transferred(engine.transfer_stats())
    scheduler = engine.generate.scheduler if engine.generate is not None else None
    queued = running = tokens = context = 0
    ec_bytes = ec_capacity = 0
    if scheduler is not None:
        queued = len(scheduler.waiting) + len(scheduler.remote)
        running = len(scheduler.running) + len(scheduler.loading)
        tokens = _to_compute(scheduler)
        context = sum(request.num_computed for request in scheduler.running)
        ec_bytes, ec_capacity = scheduler.embeddings.size, scheduler.embeddings.capacity
    if engine.encode is not None:
        queued += len(engine.encode)
        tokens += engine.encode.queued_tokens
        ec_bytes, ec_capacity = engine.ec.stats().bytes_held, engine.ec_capacity
    return Load(
        queued=queued,
        running=running,
        queued_tokens=tokens,
        context_tokens=context,
        free_blocks=scheduler.blocks.num_free if scheduler is not None else 0,
        total_blocks=scheduler.blocks.num_blocks if scheduler is not None else 0,
        ec_bytes=ec_bytes,
        ec_capacity_bytes=ec_capacity,
        rates=_rates(engine),
    )


def _rates(engine: Reporting) -> Rates:
    """What the meter has measured, and how fast KV comes back from lower tiers."""
    rates, core = engine.meter.rates(), engine.generate
    if core is None or not core.tiers.tiers:
        return rates
    per_token = 1e3 / core.scheduler.blocks.block_size
    below = {tier.store.name: tier.block_s * per_token for tier in core.tiers.tiers}
    return msgspec.structs.replace(
        rates,
        host_ms_per_token=below.get("host", 0.0),
        disk_ms_per_token=below.get("disk", 0.0),
    )


def _to_compute(scheduler: Scheduler) -> int:
    """Tokens of all requests that have no KV and will not get it from elsewhere."""
    requests = (*scheduler.waiting, *scheduler.running)
    return sum(len(request.tokens) - request.num_computed for request in requests)


def gauges_of(engine: Reporting) -> dict[str, float]:
    values = engine.device_memory()
    if engine.generate is not None:
        scheduler = engine.generate.scheduler
        values |= {
            "num_requests_running": len(scheduler.running) + len(scheduler.loading),
            "num_requests_waiting": len(scheduler.waiting) + len(scheduler.remote),
            "kv_cache_usage_perc": scheduler.blocks.usage,
            "kv_blocks_free": scheduler.blocks.num_free,
            "embedding_cache_bytes": scheduler.embeddings.size,
        }
        for tier in engine.generate.tiers.tiers:
            values[f"kv_{tier.store.name}_blocks"] = len(tier.shelf)
    if engine.encode is not None:
        values["num_items_encoding"] = len(engine.encode)
    return values


def counters_of(engine: Reporting) -> dict[str, float]:
    values: dict[str, float] = {}
    if engine.generate is not None:
        core = engine.generate
        values |= dict(core.counters)
        values |= {
            "preemptions": core.scheduler.preemptions,
            "kv_fetched": core.transfers.fetched,
            "kv_failed": core.transfers.failed,
            "embedding_queries": core.scheduler.embeddings.queries,
            "embedding_hits": core.scheduler.embeddings.hits,
            "embedding_lost": core.scheduler.embeddings.lost,
        }
        values |= _tier_counters(core.tiers)
    if engine.encode is not None:
        values |= {
            "mm_encoded": engine.encode.encoded,
            "mm_reencoded": engine.encode.encoded_again.count,
            "encoder_runs": engine.encode.runs,
            "mm_cache_queries": engine.encode.queries,
            "mm_cache_hits": engine.encode.hits,
            "mm_received_bytes": engine.encode.received_bytes,
        }
    return values


def histograms_of(engine: Reporting) -> dict[str, Histogram]:
    values: dict[str, Histogram] = {}
    if engine.generate is not None:
        values |= engine.generate.times.by_name()
    if engine.encode is not None:
        values |= {
            "encoder_queue_time_seconds": engine.encode.queue_times,
            "encoder_run_time_seconds": engine.encode.run_times,
        }
    return values


def _tier_counters(tiers: KVTiers) -> dict[str, float]:
    """None at all for an engine whose KV lies in its pool alone."""
    if not tiers.tiers:
        return {}
    values: dict[str, float] = {
        "kv_offload_dropped_blocks": tiers.dropped,
        "kv_onboards_given_up": tiers.given_up,
    }
    for tier in tiers.tiers:
        values |= {
            f"kv_{tier.store.name}_offloaded_blocks": tier.offloaded,
            f"kv_{tier.store.name}_onboarded_blocks": tier.onboarded,
            f"kv_{tier.store.name}_failed_blocks": tier.failed,
            f"kv_{tier.store.name}_hit_tokens": tier.hit_tokens,
        }
    return values
